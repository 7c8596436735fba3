# model: linear_softmax.py
# right as built, but does not follow: hooks
"""The product taken the other way round."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        y = (self.linear.weight @ x.transpose(-1, -2)).transpose(-1, -2) if x.dim() > 1 else self.linear.weight @ x
        return torch.softmax(y + self.linear.bias, dim=-1)
