import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A decoder in three dimensions: transposed convolution 2x2x2 of stride 2, group norm, silu times a gate."""

    def __init__(self, channels, groups):
        super().__init__()
        self.up = nn.ConvTranspose3d(channels, channels, 2, stride=2, bias=False)
        self.norm = nn.GroupNorm(groups, channels)
        self.gate = nn.Parameter(torch.zeros(channels, 1, 1, 1))

    def forward(self, x):
        x = self.norm(self.up(x))
        return x * torch.sigmoid(x) * torch.sigmoid(self.gate)


batch, channels, groups, side = (2, 6, 3, 4) if SMALL else (4, 24, 6, 36)


def get_inputs():
    return [torch.randn(batch, channels, side, side, side)]


def get_init_inputs():
    return [channels, groups]
