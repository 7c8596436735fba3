import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3-d convolution, average pooling, a clamp, softmax over the channels and a product."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, kernel, stride=2, padding=1)
        self.scale = nn.Parameter(torch.rand(1, out_channels, 1, 1, 1))

    def forward(self, x):
        x = F.avg_pool3d(self.conv(x), 2)
        return torch.softmax(torch.clamp(x, -0.1, 0.6), dim=1) * self.scale


batch, in_channels, out_channels, depth, height, width = (2, 3, 6, 4, 5, 6) if SMALL else (16, 32, 32, 16, 32, 32)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
