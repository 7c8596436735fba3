import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Convolution, the minimum over the channels, tanh twice, and the mean of each image."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride=2, padding=1)

    def forward(self, x):
        x = torch.min(self.conv(x), dim=1, keepdim=True)[0]
        x = torch.tanh(torch.tanh(x))
        return x, x.mean((1, 2, 3))


batch, in_channels, out_channels, height, width = (2, 4, 7, 13, 12) if SMALL else (64, 32, 96, 160, 160)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
