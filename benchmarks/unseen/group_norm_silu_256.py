import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """The order of diffusion networks: group norm, silu, convolution, and the input added."""

    def __init__(self, channels, groups):
        super().__init__()
        self.norm_in = nn.GroupNorm(groups, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm_out = nn.GroupNorm(groups, channels)

    def forward(self, x):
        h = self.conv(F.silu(self.norm_in(x)))
        return x + F.silu(self.norm_out(h))


batch, channels, groups, size = (2, 8, 2, 7) if SMALL else (64, 256, 32, 32)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, groups]
