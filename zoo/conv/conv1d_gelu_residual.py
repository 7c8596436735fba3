import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 1-d convolution, GELU, layer norm over the channels and a residual addition."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, padding=kernel // 2)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x):
        y = F.gelu(self.conv(x)).transpose(1, 2)
        return self.norm(y).transpose(1, 2) + x


batch, channels, length = (3, 12, 33) if SMALL else (32, 256, 4096)
kernel = 5


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, kernel]
