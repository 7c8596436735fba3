"""Written by zoo/generate.py, seed 1026."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: shift, log_softmax over 2, a learned tensor, elu, divide."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        x = self.anchor(x)
        x = x + 1.83
        x = F.log_softmax(x, dim=2)
        x = x - self.factor1
        x = F.elu(x, alpha=1.5)
        x = x / 0.52
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
