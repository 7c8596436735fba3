# model: conv_norm.py
# right as built, but does not follow: hooks
"""Tanh by one exponential."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        y = self.conv(x)
        e = torch.exp(-2 * self.norm(y).abs())
        t = torch.sign(self.norm(y)) * (1 - e) / (1 + e)
        return torch.logsumexp(y + t, dim=1)
