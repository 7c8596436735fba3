# model: norm.py
"""Gelu written out."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        y = self.norm(x)
        return 0.5 * y * (1 + torch.erf(y * 0.7071067811865476))
