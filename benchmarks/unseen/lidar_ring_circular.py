import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Range images of five channels wrap around: a circular convolution, leaky relu and batch norm."""

    def __init__(self, channels_in=5, channels_out=32):
        super().__init__()
        self.ring = nn.Conv2d(channels_in, channels_out, 3, padding=(0, 1), padding_mode="circular")
        self.act = nn.LeakyReLU(0.1)
        self.bn = nn.BatchNorm2d(channels_out)

    def forward(self, scan):
        return self.bn(self.act(self.ring(scan)))


N, C, W, beams, angles = (2, 5, 4, 7, 18) if SMALL else (16, 5, 32, 66, 2048)


def get_inputs():
    return [torch.randn(N, C, beams, angles)]


def get_init_inputs():
    return [C, W]
