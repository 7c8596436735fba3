import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Convolution, batch norm in training, tanh, max pooling and a sum over the channels."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        return self.pool(torch.tanh(self.norm(self.conv(x)))).sum(1, keepdim=True)


batch, in_channels, out_channels, height, width = (3, 3, 6, 10, 13) if SMALL else (64, 32, 64, 128, 128)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
