import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3x3 convolution and nothing else, of odd sizes."""

    def __init__(self, *dims):
        super().__init__()
        self.conv2d = nn.Conv2d(*dims, stride=1, padding=1)

    def forward(self, x):
        return self.conv2d(x)


batch, in_channels, out_channels, h, w = (2, 5, 7, 9, 8) if SMALL else (36, 96, 192, 75, 101)


def get_inputs():
    return [torch.randn(batch, in_channels, h, w)]


def get_init_inputs():
    return [in_channels, out_channels, 3]
