"""Written by zoo/generate.py, seed 1003."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv3d: a learned tensor, instance norm, group norm, gelu."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv3d(in_channels, out_channels, 3, padding=1)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1, 1, 1))
        self.norm1 = nn.InstanceNorm3d(out_channels)
        self.norm2 = nn.GroupNorm(4, out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = x + self.factor1
        x = self.norm1(x)
        x = self.norm2(x)
        x = F.gelu(x)
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 8, 9, 10) if SMALL else (8, 16, 32, 24, 56, 56)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
