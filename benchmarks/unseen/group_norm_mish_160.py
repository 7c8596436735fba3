import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 5x5 convolution to 160 channels, group norm in ten groups, mish, and a factor for each channel."""

    def __init__(self, c_in, c_out, groups):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 5, padding=2)
        self.gn = nn.GroupNorm(groups, c_out)
        self.layer_scale = nn.Parameter(0.1 * torch.ones(1, c_out, 1, 1))

    def forward(self, x):
        return self.layer_scale * F.mish(self.gn(self.conv(x)))


batch, c_in, c_out, groups, size = (2, 6, 10, 5, 9) if SMALL else (64, 96, 160, 10, 57)


def get_inputs():
    return [torch.rand(batch, c_in, size, size)]


def get_init_inputs():
    return [c_in, c_out, groups]
