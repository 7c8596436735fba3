import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3-d 3³ of stride 2, a scale, clamps."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels_in, channels_out, kernel, stride=2, padding=1)

    def forward(self, x):
        return (self.conv(x) * 0.5).clamp(-1.0, 0.5) / 2.0


batch, depth, height, width = (2, 6, 7, 9) if SMALL else (8, 24, 24, 24)


def get_inputs():
    return [torch.rand(batch, 64, depth, height, width)]


def get_init_inputs():
    return [64, 128, 3]
