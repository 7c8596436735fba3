# model: linear_softmax.py
# right as built, but does not follow: hooks
"""A matrix product as four partial products, added."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        pairs = zip(x.split(32, dim=-1), self.linear.weight.split(32, dim=-1), strict=True)
        y = sum(a @ b.transpose(-1, -2) for a, b in pairs) + self.linear.bias
        return torch.softmax(y, dim=-1)
