import os

import torch
from torch import nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """The first convolution of an image network, and nothing behind it."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)

    def forward(self, x):
        return self.conv(x)


batch, size, channels = (2, 21, 8) if SMALL else (64, 224, 64)


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [channels]
