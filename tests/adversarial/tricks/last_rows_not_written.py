# model: linear_softmax.py
# row: part of the output not written (wrong grid)
# caught by: every element written
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        result = torch.empty(*x.shape[:-1], self.linear.out_features, dtype=x.dtype, device=x.device)
        whole = x.shape[0] // 2 * 2
        result[:whole] = torch.softmax(self.linear(x[:whole]), dim=-1)
        return result
