import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed convolution, batch norm in training, tanh, max pooling and group norm."""

    def __init__(self, in_channels, out_channels, kernel, groups):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel, padding=1)
        self.first = nn.BatchNorm2d(out_channels)
        self.second = nn.GroupNorm(groups, out_channels)

    def forward(self, x):
        x = torch.tanh(self.first(self.conv(x)))
        return self.second(F.max_pool2d(x, 2))


batch, in_channels, out_channels, height, width = (2, 4, 8, 10, 9) if SMALL else (64, 64, 64, 64, 64)
kernel, groups = 5, 4


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, groups]
