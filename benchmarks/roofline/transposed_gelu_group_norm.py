import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3×3 of stride 1, gelu and a group norm."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels_in, channels_out, kernel)
        self.norm = nn.GroupNorm(8, channels_out)

    def forward(self, x):
        return self.norm(nn.functional.gelu(self.conv(x)))


batch, height, width = (3, 12, 13) if SMALL else (64, 128, 128)


def get_inputs():
    return [torch.rand(batch, 64, height, width)]


def get_init_inputs():
    return [64, 64, 3]
