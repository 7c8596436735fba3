"""Written by zoo/generate.py, seed 15."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv2d, bf16: group norm, silu, log_softmax over 3."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv2d(in_channels, out_channels, 3, stride=2)
        self.norm1 = nn.GroupNorm(4, out_channels)
        self.to(torch.bfloat16)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = F.silu(x)
        x = F.log_softmax(x, dim=3)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 15, 14) if SMALL else (64, 32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width, dtype=torch.bfloat16)]


def get_init_inputs():
    return [in_channels, out_channels]
