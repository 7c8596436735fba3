"""Written by zoo/generate.py, seed 17."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose1d: abs, a learned tensor, mean over 1, 2, subtract, hardsigmoid."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose1d(in_channels, out_channels, 3, stride=2, padding=1)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1))

    def forward(self, x):
        x = self.anchor(x)
        x = torch.abs(x)
        x = x - self.factor1
        x = torch.mean(x, dim=(1, 2), keepdim=True)
        x = x - 2.09
        x = F.hardsigmoid(x)
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 11) if SMALL else (64, 128, 128, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
