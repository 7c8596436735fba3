# model: scale_shift.py
"""Hardswish written out, its constants merged."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, slope=0.5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))
        self.slope = slope

    def forward(self, x):
        x = torch.clamp_min(x, 0) * self.scale + self.shift
        return x * torch.clamp(x + 3, 0, 6) * (self.slope / 6)
