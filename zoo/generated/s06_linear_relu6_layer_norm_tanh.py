"""Written by zoo/generate.py, seed 6."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """linear: relu6, layer norm, tanh, batch norm, a learned tensor."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Linear(in_channels, out_channels)
        self.norm1 = nn.LayerNorm(out_channels)
        self.norm2 = nn.BatchNorm1d(out_channels)
        self.factor1 = nn.Parameter(torch.randn(out_channels))

    def forward(self, x):
        x = self.anchor(x)
        x = F.relu6(x)
        x = self.norm1(x)
        x = torch.tanh(x)
        x = self.norm2(x)
        x = x + self.factor1
        return x


batch, in_channels, out_channels = (9, 20, 24) if SMALL else (8192, 1024, 4096)


def get_inputs():
    return [torch.randn(batch, in_channels)]


def get_init_inputs():
    return [in_channels, out_channels]
