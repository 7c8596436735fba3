import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A depthwise convolution, squeeze and excitation, hardswish, in training."""

    def __init__(self, channels, squeezed):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.down = nn.Conv2d(channels, squeezed, 1)
        self.up = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        y = F.hardswish(self.bn(self.conv(x)))
        gate = F.adaptive_avg_pool2d(y, 1)
        gate = F.hardsigmoid(self.up(F.relu(self.down(gate))))
        return x + y * gate


batch, channels, size, squeezed = (3, 6, 8, 4) if SMALL else (64, 120, 56, 32)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, squeezed]
