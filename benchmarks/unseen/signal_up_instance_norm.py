import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A transposed convolution of stride 2 in one dimension with output padding, instance norm, abs."""

    def __init__(self, width, kernel_size):
        super().__init__()
        self.up = nn.ConvTranspose1d(width, width // 2, kernel_size, stride=2, padding=2, output_padding=1)
        self.norm = nn.InstanceNorm1d(width // 2)

    def forward(self, x):
        return torch.abs(self.norm(self.up(x)))


batch, width, length = (2, 8, 25) if SMALL else (160, 96, 4999)


def get_inputs():
    return [torch.rand(batch, width, length)]


def get_init_inputs():
    return [width, 5]
