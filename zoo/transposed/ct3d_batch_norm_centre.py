import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3-d convolution and batch norm in training, less the mean of every channel."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, kernel, stride=2, padding=1)
        self.norm = nn.BatchNorm3d(out_channels)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x - torch.mean(x, dim=(2, 3, 4), keepdim=True)


batch, in_channels, out_channels, depth, height, width = (2, 3, 5, 4, 6, 5) if SMALL else (16, 16, 32, 16, 32, 32)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
