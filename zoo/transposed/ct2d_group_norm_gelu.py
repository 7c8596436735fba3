import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed convolution, GELU and group norm."""

    def __init__(self, in_channels, out_channels, kernel, groups):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel, stride=2)
        self.norm = nn.GroupNorm(groups, out_channels)

    def forward(self, x):
        return self.norm(F.gelu(self.conv(x)))


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 64, 64, 64, 64)
kernel, groups = 4, 4


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, groups]
