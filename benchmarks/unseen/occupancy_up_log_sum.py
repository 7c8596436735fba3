import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3-D transposed convolution of stride 2, clamped, its logarithm summed over the depth."""

    def __init__(self, c_in, c_out, low):
        super().__init__()
        self.low = low
        self.up = nn.ConvTranspose3d(c_in, c_out, 4, stride=2, padding=1)

    def forward(self, grid):
        occupancy = self.up(grid).clamp(self.low, 1.0)
        return occupancy.log().sum(dim=2)


batch, c_in, c_out, depth, side = (2, 4, 3, 4, 6) if SMALL else (12, 16, 8, 24, 48)


def get_inputs():
    return [torch.rand(batch, c_in, depth, side, side)]


def get_init_inputs():
    return [c_in, c_out, 0.01]
