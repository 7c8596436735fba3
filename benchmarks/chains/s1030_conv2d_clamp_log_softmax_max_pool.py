"""Written by zoo/generate.py, seed 1030."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv2d: clamp, log_softmax over 3, max pool, batch norm."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv2d(in_channels, out_channels, 3)
        self.norm1 = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = torch.clamp(x, max=1.89)
        x = F.log_softmax(x, dim=3)
        x = F.max_pool2d(x, 2)
        x = self.norm1(x)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 15, 14) if SMALL else (64, 32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
