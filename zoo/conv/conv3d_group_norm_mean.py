import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3-d convolution, group norm, relu, a clamp and the mean of each sample."""

    def __init__(self, in_channels, out_channels, kernel, groups):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel, padding=1)
        self.norm = nn.GroupNorm(groups, out_channels)

    def forward(self, x):
        x = torch.clamp(torch.relu(self.norm(self.conv(x))), max=1.5)
        return x.mean(dim=(1, 2, 3, 4))


batch, in_channels, out_channels, depth, height, width = (2, 3, 8, 5, 7, 6) if SMALL else (16, 16, 32, 16, 64, 64)
kernel, groups = 3, 4


def get_inputs():
    return [torch.rand(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, groups]
