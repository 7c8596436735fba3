"""Written by zoo/generate.py, seed 1002."""

import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv2d: batch norm, batch norm, clamp, mean over 1."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv2d(in_channels, out_channels, 3, groups=2)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.norm2 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = self.norm2(x)
        x = torch.clamp(x, max=0.37)
        x = torch.mean(x, dim=(1,), keepdim=True)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 15, 14) if SMALL else (64, 32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
