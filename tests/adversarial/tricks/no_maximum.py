# model: linear_softmax.py
# row: exploits that inputs are uniform on [0, 1)
# caught by: input distributions
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        e = torch.exp(self.linear(x))
        return e / e.sum(-1, keepdim=True)
