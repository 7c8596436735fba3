import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A residual layer in three dimensions: convolution, batch norm, the input added, relu."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm3d(channels)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)) + x)


batch, channels, depth, side = (2, 4, 5, 7) if SMALL else (8, 64, 24, 48)


def get_inputs():
    return [torch.randn(batch, channels, depth, side, side)]


def get_init_inputs():
    return [channels]
