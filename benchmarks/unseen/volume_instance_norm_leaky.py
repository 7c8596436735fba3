import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Strided 3-D convolution from 64 to 96 channels, an affine instance norm, leaky relu by a condition."""

    def __init__(self, in_channels, out_channels, negative_slope):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, (3, 3, 3), stride=(1, 2, 2), padding=1)
        self.norm = nn.InstanceNorm3d(out_channels, eps=1e-4, affine=True)
        self.negative_slope = negative_slope

    def forward(self, x):
        x = self.norm(self.conv(x))
        return torch.where(x > 0, x, self.negative_slope * x)


batch, in_channels, out_channels, depth, side = (2, 4, 6, 4, 9) if SMALL else (6, 64, 96, 20, 96)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, side, side)]


def get_init_inputs():
    return [in_channels, out_channels, 0.01]
