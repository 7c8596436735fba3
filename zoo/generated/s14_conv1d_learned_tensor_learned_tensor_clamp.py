"""Written by zoo/generate.py, seed 14."""

import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv1d: a learned tensor, a learned tensor, clamp, scale."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv1d(in_channels, out_channels, 3)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1))
        self.factor2 = nn.Parameter(torch.randn(out_channels, 1))

    def forward(self, x):
        x = self.anchor(x)
        x = x + self.factor1
        x = x * self.factor2
        x = torch.clamp(x, max=1.04)
        x = x * 2.01
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 24) if SMALL else (64, 128, 256, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
