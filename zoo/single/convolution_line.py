import os

import torch
from torch import nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A dilated and strided convolution of lines."""

    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv1d(channels, out, 5, stride=2, dilation=3)

    def forward(self, x):
        return self.conv(x)


batch, channels, out, length = (2, 8, 12, 61) if SMALL else (32, 64, 128, 16384)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, out]
