"""Written by zoo/generate.py, seed 18."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: leaky relu, clamp, tanh, a learned tensor, abs, batch norm, residual sum."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.norm1 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = F.leaky_relu(x, 0.01)
        x = torch.clamp(x, max=1.06)
        kept = x
        x = torch.tanh(x)
        x = x * self.factor1
        x = torch.abs(x)
        x = self.norm1(x)
        x = x + kept
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
