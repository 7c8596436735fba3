"""Written by zoo/generate.py, seed 20."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """linear: softmax over 1, gelu, subtract."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Linear(in_channels, out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = F.softmax(x, dim=1)
        x = F.gelu(x)
        x = x - 0.58
        return x


batch, in_channels, out_channels = (9, 20, 24) if SMALL else (8192, 1024, 4096)


def get_inputs():
    return [torch.randn(batch, in_channels)]


def get_init_inputs():
    return [in_channels, out_channels]
