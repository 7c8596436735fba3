"""Written by zoo/generate.py, seed 4."""

import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: batch norm, subtract, logsumexp over 1, 3, mean over 2, scale, clamp."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3)
        self.norm1 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = x - 0.45
        x = torch.logsumexp(x, dim=(1, 3), keepdim=True)
        x = torch.mean(x, dim=(2,), keepdim=True)
        x = x * 0.88
        x = torch.clamp(x, min=-0.19)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
