import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution in bf16, a scale, and softmax over the channels."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.softmax(self.conv(x) * 3.0, dim=1)


batch, in_channels, out_channels, height, width = (2, 4, 10, 9, 11) if SMALL else (32, 64, 128, 96, 96)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, height, width, dtype=torch.bfloat16)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
