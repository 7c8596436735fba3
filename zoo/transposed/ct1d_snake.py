import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 1-d convolution and the snake activation of vocoders."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel, stride=2, padding=1)
        self.alpha = nn.Parameter(torch.rand(out_channels, 1) + 0.5)

    def forward(self, x):
        x = self.conv(x)
        return x + torch.sin(self.alpha * x) ** 2 / (self.alpha + 1e-9)


batch, in_channels, out_channels, length = (2, 5, 4, 21) if SMALL else (16, 128, 64, 16384)
kernel = 4


def get_inputs():
    return [torch.randn(batch, in_channels, length)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
