import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """3×3 of many channels, a clamp and a scale behind it."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel)
        self.scale = nn.Parameter(torch.rand(channels_out, 1, 1))

    def forward(self, x):
        y = self.conv(x).clamp(-1.0, 0.75)
        return y * self.scale


batch, height, width = (3, 12, 13) if SMALL else (64, 128, 128)


def get_inputs():
    return [torch.rand(batch, 64, height, width)]


def get_init_inputs():
    return [64, 128, 3]
