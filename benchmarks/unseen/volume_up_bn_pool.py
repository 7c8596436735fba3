import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3-D transposed convolution of stride 2, batch norm in training, two average pools."""

    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, output_padding):
        super().__init__()
        self.up = nn.ConvTranspose3d(in_channels, out_channels, kernel_size, stride, padding, output_padding)
        self.bn = nn.BatchNorm3d(out_channels)

    def forward(self, x):
        x = self.bn(self.up(x))
        x = F.avg_pool3d(x, 2)
        return F.avg_pool3d(x, kernel_size=2, stride=1)


batch, in_channels, out_channels, d, h, w = (2, 4, 3, 3, 4, 5) if SMALL else (64, 32, 16, 14, 28, 30)


def get_inputs():
    return [torch.randn(batch, in_channels, d, h, w)]


def get_init_inputs():
    return [in_channels, out_channels, 3, 2, 1, 1]
