import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A grouped 3x3 convolution of 384 channels, batch norm in training, relu6."""

    def __init__(self, width, cardinality):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.clamp(self.bn(self.conv(x)), 0.0, 6.0)


batch, width, cardinality, size = (2, 8, 2, 8) if SMALL else (128, 384, 12, 31)


def get_inputs():
    return [torch.randn(batch, width, size, size)]


def get_init_inputs():
    return [width, cardinality]
