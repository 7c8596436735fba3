# model: norm.py
# right as built, but does not follow: hooks
"""Statistics first, then one pass that applies them."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        groups = x.reshape(x.shape[0], self.norm.num_groups, -1)
        variance, mean = torch.var_mean(groups, -1, keepdim=True, correction=0)
        y = ((groups - mean) / torch.sqrt(variance + self.norm.eps)).reshape(x.shape)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return F.gelu(y * self.norm.weight.view(shape) + self.norm.bias.view(shape))
