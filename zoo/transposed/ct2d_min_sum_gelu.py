import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed convolution, the minimum over the channels, the sum over the height, GELU and a bias."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel, stride=2, padding=1)
        self.bias = nn.Parameter(torch.randn(1, 1, 1))

    def forward(self, x):
        x = torch.min(self.conv(x), dim=1, keepdim=True)[0]
        return F.gelu(torch.sum(x, dim=2, keepdim=True)) + self.bias


batch, in_channels, out_channels, height, width = (2, 3, 6, 8, 9) if SMALL else (32, 32, 64, 96, 96)
kernel = 4


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
