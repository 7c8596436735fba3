"""Written by zoo/generate.py, seed 1019."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: max pool, clamp, divide."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3)

    def forward(self, x):
        x = self.anchor(x)
        x = F.max_pool2d(x, 2)
        x = torch.clamp(x, max=1.63)
        x = x / 1.15
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
