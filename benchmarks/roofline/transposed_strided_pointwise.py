import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 4×4 of stride 2, a bias, clamps and a scale."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels_in, channels_out, kernel, stride=2, padding=1)
        self.shift = nn.Parameter(torch.randn(channels_out, 1, 1))

    def forward(self, x):
        y = (self.conv(x) + self.shift).clamp(0.0, 1.0) * 2.0
        return y.clamp(0.0, 1.0) / 2.0


batch, height, width = (3, 12, 13) if SMALL else (64, 64, 64)


def get_inputs():
    return [torch.rand(batch, 64, height, width)]


def get_init_inputs():
    return [64, 128, 4]
