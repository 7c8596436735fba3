import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3×3 of stride 2, subtract, tanh."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels_in, channels_out, kernel, stride=2, padding=1, output_padding=1)
        self.shift = nn.Parameter(torch.randn(channels_out, 1, 1))

    def forward(self, x):
        return torch.tanh(self.conv(x) - self.shift)


batch, height, width = (3, 12, 13) if SMALL else (64, 128, 128)


def get_inputs():
    return [torch.rand(batch, 64, height, width)]


def get_init_inputs():
    return [64, 64, 3]
