import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """3-d of few channels, relu, gelu, sigmoid and a learned shift."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels_in, channels_out, kernel)
        self.shift = nn.Parameter(torch.randn(channels_out, 1, 1, 1))

    def forward(self, x):
        return torch.sigmoid(nn.functional.gelu(torch.relu(self.conv(x)))) + self.shift


batch, depth, height, width = (2, 6, 7, 9) if SMALL else (64, 32, 64, 64)


def get_inputs():
    return [torch.rand(batch, 8, depth, height, width)]


def get_init_inputs():
    return [8, 32, 3]
