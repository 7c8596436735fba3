import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3-d convolution, the minimum over the depth, softmax over the channels."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel)

    def forward(self, x):
        return torch.softmax(torch.min(self.conv(x), dim=2)[0], dim=1)


batch, in_channels, out_channels, depth, height, width = (2, 3, 5, 6, 8, 9) if SMALL else (16, 8, 32, 24, 64, 64)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
