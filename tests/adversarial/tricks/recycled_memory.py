# model: linear_softmax.py
# row: output left in recycled memory, never written
# caught by: every element written
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        return torch.empty(*x.shape[:-1], self.linear.out_features, dtype=x.dtype, device=x.device)
