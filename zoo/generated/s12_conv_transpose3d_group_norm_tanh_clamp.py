"""Written by zoo/generate.py, seed 12."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose3d: group norm, tanh, clamp, amin over 2, mish."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose3d(in_channels, out_channels, 3, stride=2)
        self.norm1 = nn.GroupNorm(4, out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = torch.tanh(x)
        x = torch.clamp(x, min=-0.19, max=1.44)
        x = torch.amin(x, dim=(2,), keepdim=True)
        x = F.mish(x)
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 5, 6, 5) if SMALL else (16, 16, 32, 16, 40, 40)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
