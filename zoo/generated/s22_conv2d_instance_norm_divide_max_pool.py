"""Written by zoo/generate.py, seed 22."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv2d: instance norm, divide, max pool, silu, logsumexp over 1, 3, tanh."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv2d(in_channels, out_channels, 3, stride=2)
        self.norm1 = nn.InstanceNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = x / 1.93
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = F.silu(x)
        x = torch.logsumexp(x, dim=(1, 3), keepdim=True)
        x = torch.tanh(x)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 15, 14) if SMALL else (64, 32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
