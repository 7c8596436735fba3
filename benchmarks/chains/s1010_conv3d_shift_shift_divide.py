"""Written by zoo/generate.py, seed 1010."""

import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv3d: shift, shift, divide, a learned tensor, divide, logsumexp over 1."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv3d(in_channels, out_channels, 3)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1, 1, 1))

    def forward(self, x):
        x = self.anchor(x)
        x = x + 1.21
        x = x + 2.22
        x = x / 2.13
        x = x * self.factor1
        x = x / 1.35
        x = torch.logsumexp(x, dim=(1,), keepdim=True)
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 8, 9, 10) if SMALL else (8, 16, 32, 24, 56, 56)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
