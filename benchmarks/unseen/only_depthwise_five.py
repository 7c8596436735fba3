import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A depthwise 5x5 convolution through the functional form, with a weight of its own."""

    def __init__(self, channels, kernel_size):
        super().__init__()
        self.channels = channels
        self.kernel = nn.Parameter(torch.randn(channels, 1, kernel_size, kernel_size) / kernel_size)

    def forward(self, x):
        return F.conv2d(x, self.kernel, padding=2, groups=self.channels)


batch, channels, h, w = (2, 6, 10, 9) if SMALL else (200, 144, 56, 72)


def get_inputs():
    return [torch.randn(batch, channels, h, w)]


def get_init_inputs():
    return [channels, 5]
