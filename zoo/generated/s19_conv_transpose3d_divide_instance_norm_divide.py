"""Written by zoo/generate.py, seed 19."""

import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose3d: divide, instance norm, divide."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose3d(in_channels, out_channels, 3, stride=2, padding=1)
        self.norm1 = nn.InstanceNorm3d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = x / 1.06
        x = self.norm1(x)
        x = x / 0.87
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 5, 6, 5) if SMALL else (16, 16, 32, 16, 40, 40)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
