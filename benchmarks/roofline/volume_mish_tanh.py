import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """3-d, mish and tanh."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels_in, channels_out, kernel)

    def forward(self, x):
        return torch.tanh(nn.functional.mish(self.conv(x)))


batch, depth, height, width = (2, 6, 7, 9) if SMALL else (16, 32, 64, 64)


def get_inputs():
    return [torch.rand(batch, 32, depth, height, width)]


def get_init_inputs():
    return [32, 64, 3]
