# model: linear_softmax.py
"""The same operators."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        return torch.softmax(self.linear(x), dim=-1)
