import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Convolution, instance norm, a division and leaky relu."""

    def __init__(self, in_channels, out_channels, kernel, divisor):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=1)
        self.norm = nn.InstanceNorm2d(out_channels)
        self.divisor = divisor

    def forward(self, x):
        return F.leaky_relu(self.norm(self.conv(x)) / self.divisor, 0.2)


batch, in_channels, out_channels, height, width = (2, 4, 6, 11, 14) if SMALL else (32, 64, 128, 96, 96)
kernel, divisor = 3, 2.0


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, divisor]
