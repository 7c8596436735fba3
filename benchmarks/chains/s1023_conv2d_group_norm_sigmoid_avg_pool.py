"""Written by zoo/generate.py, seed 1023."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv2d: group norm, sigmoid, avg pool, divide, batch norm, clamp."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv2d(in_channels, out_channels, 3, dilation=2)
        self.norm1 = nn.GroupNorm(4, out_channels)
        self.norm2 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = torch.sigmoid(x)
        x = F.avg_pool2d(x, 3, stride=2, padding=1)
        x = x / 0.91
        x = self.norm2(x)
        x = torch.clamp(x, min=-0.49, max=0.5)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 15, 14) if SMALL else (64, 32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
