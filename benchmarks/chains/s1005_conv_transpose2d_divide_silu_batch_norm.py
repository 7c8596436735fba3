"""Written by zoo/generate.py, seed 1005."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: divide, silu, batch norm, abs, logsumexp over 3, sigmoid, residual product."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2)
        self.norm1 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = x / 2.23
        x = F.silu(x)
        x = self.norm1(x)
        kept = x
        x = torch.abs(x)
        x = torch.logsumexp(x, dim=(3,), keepdim=True)
        x = torch.sigmoid(x)
        x = x * kept
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
