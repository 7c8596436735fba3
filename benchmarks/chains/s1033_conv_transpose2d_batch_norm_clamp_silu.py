"""Written by zoo/generate.py, seed 1033."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: batch norm, clamp, silu, max pool, instance norm."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2, padding=1)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.norm2 = nn.InstanceNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = torch.clamp(x, min=-0.92)
        x = F.silu(x)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.norm2(x)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
