"""Written by zoo/generate.py, seed 0."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv1d: leaky relu, divide, group norm, silu, residual sum, max pool."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv1d(in_channels, out_channels, 3, dilation=2)
        self.norm1 = nn.GroupNorm(4, out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = F.leaky_relu(x, 0.1)
        x = x / 2.32
        x = self.norm1(x)
        kept = x
        x = F.silu(x)
        x = x + kept
        x = F.max_pool1d(x, 2)
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 24) if SMALL else (64, 128, 256, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
