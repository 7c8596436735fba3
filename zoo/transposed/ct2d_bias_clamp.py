import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed convolution, a learned bias, clamps and a scale between them."""

    def __init__(self, in_channels, out_channels, kernel, stride, padding):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel, stride, padding, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        x = torch.clamp(self.conv(x) + self.bias, 0.0, 1.0) * 2.0
        return torch.clamp(x, 0.0, 1.0) / 2.0


batch, in_channels, out_channels, height, width = (2, 4, 5, 8, 9) if SMALL else (32, 64, 64, 96, 96)
kernel, stride, padding = 3, 2, 1


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, stride, padding]
