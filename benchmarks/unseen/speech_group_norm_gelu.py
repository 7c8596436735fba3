import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A speech encoder's layer: strided convolution without bias, a norm of each channel in time, gelu."""

    def __init__(self, channels, kernel, stride):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, stride=stride, bias=False)
        self.norm = nn.GroupNorm(channels, channels)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)))


batch, channels, kernel, stride, length = (2, 8, 3, 2, 33) if SMALL else (20, 512, 3, 2, 6399)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, kernel, stride]
