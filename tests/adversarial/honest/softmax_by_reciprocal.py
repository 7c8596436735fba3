# model: linear_softmax.py
"""Division by multiplying with the reciprocal."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        y = self.linear(x)
        e = torch.exp(y - y.amax(-1, keepdim=True))
        return e * torch.reciprocal(e.sum(-1, keepdim=True))
