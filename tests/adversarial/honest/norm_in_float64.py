# model: norm.py
# right as built, but does not follow: attributes set later, hooks
"""Everything in float64 inside."""

import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        weight, bias = self.norm.weight.double(), self.norm.bias.double()
        return F.gelu(F.group_norm(x.double(), self.norm.num_groups, weight, bias)).to(x.dtype)
