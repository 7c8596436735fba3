# model: linear_softmax.py
"""Softmax by powers of two."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        y = self.linear(x) * 1.4426950408889634
        e = torch.exp2(y - y.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)
