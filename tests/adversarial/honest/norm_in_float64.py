# model: norm.py
"""Everything in float64 inside."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return F.gelu(F.group_norm(x.double(), self.norm.num_groups, self.norm.weight.double(), self.norm.bias.double())).to(x.dtype)
