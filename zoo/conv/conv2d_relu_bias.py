import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Convolution, relu, a learned bias for each channel, and a scale."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        return (torch.relu(self.conv(x)) + self.bias) * 1.7


batch, in_channels, out_channels, height, width = (2, 4, 8, 12, 14) if SMALL else (64, 32, 128, 128, 128)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
