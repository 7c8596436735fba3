"""A plain convolution of volumes, 3 x 3 x 3, 64 channels."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A plain convolution of volumes, 3 x 3 x 3, 64 channels."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, 3, padding=1)

    def forward(self, x):
        return F.relu(self.conv(x))


batch, in_channels, out_channels, size = (2, 8, 16, 9) if SMALL else (4, 64, 64, 32)


def get_inputs():
    return [torch.randn(batch, in_channels, size, size, size)]


def get_init_inputs():
    return [in_channels, out_channels]
