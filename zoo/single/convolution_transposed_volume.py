import os

import torch
from torch import nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A transposed convolution that doubles a volume."""

    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, out, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        return self.conv(x)


batch, channels, out, size = (2, 4, 6, 4) if SMALL else (8, 32, 32, 24)


def get_inputs():
    return [torch.randn(batch, channels, size, size, size)]


def get_init_inputs():
    return [channels, out]
