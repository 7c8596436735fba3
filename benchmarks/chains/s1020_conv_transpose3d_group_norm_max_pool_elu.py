"""Written by zoo/generate.py, seed 1020."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose3d: group norm, max pool, elu, relu, batch norm, leaky relu, residual sum."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose3d(in_channels, out_channels, 3)
        self.norm1 = nn.GroupNorm(4, out_channels)
        self.norm2 = nn.BatchNorm3d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = F.max_pool3d(x, 2)
        x = F.elu(x, alpha=1.5)
        kept = x
        x = torch.relu(x)
        x = self.norm2(x)
        x = F.leaky_relu(x, 0.2)
        x = x + kept
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 5, 6, 5) if SMALL else (16, 16, 32, 16, 40, 40)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
