import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Depthwise and pointwise convolutions, each with batch norm in evaluation and silu."""

    def __init__(self, channels, out_channels, kernel):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding=1, groups=channels, bias=False)
        self.first = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.second = nn.BatchNorm2d(out_channels)
        self.eval()

    def forward(self, x):
        x = F.silu(self.first(self.depthwise(x)))
        return F.silu(self.second(self.pointwise(x)))


batch, channels, out_channels, height, width = (2, 6, 9, 10, 11) if SMALL else (32, 96, 192, 112, 112)
kernel = 3


def get_inputs():
    return [torch.rand(batch, channels, height, width)]


def get_init_inputs():
    return [channels, out_channels, kernel]
