"""A plain convolution, 3 x 3, 64 channels, large images."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A plain convolution, 3 x 3, 64 channels, large images."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv(x))


batch, in_channels, out_channels, size = (2, 8, 16, 9) if SMALL else (32, 64, 64, 128)


def get_inputs():
    return [torch.randn(batch, in_channels, size, size)]


def get_init_inputs():
    return [in_channels, out_channels]
