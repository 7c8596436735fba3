import os

import torch
from torch import nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution of each channel by itself."""

    def __init__(self, channels, multiplier):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels * multiplier, (3, 5), padding=(1, 2), groups=channels)

    def forward(self, x):
        return self.conv(x)


batch, channels, multiplier, height, width = (2, 6, 2, 9, 13) if SMALL else (16, 64, 2, 128, 256)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels, multiplier]
