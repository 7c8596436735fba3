import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 4×4 of stride 1, pointwise work."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels_in, channels_out, kernel)

    def forward(self, x):
        return torch.tanh(self.conv(x) * 0.5 + 1.0)


batch, height, width = (3, 12, 13) if SMALL else (64, 128, 128)


def get_inputs():
    return [torch.rand(batch, 64, height, width)]


def get_init_inputs():
    return [64, 64, 4]
