import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A block of shifted windows: norm, roll, cut into windows of 7 x 7, mix channels in each, put back."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Linear(channels, channels)

    def forward(self, x):
        batch, height, width, channels = x.shape
        y = torch.roll(self.norm(x), (-3, -3), (1, 2))
        y = y.view(batch, height // 7, 7, width // 7, 7, channels).transpose(2, 3).reshape(-1, 49, channels)
        y = F.gelu(self.mix(y))
        y = y.view(batch, height // 7, width // 7, 7, 7, channels).transpose(2, 3).reshape(batch, height, width, channels)
        return x + torch.roll(y, (3, 3), (1, 2))


batch, size, channels = (2, 14, 12) if SMALL else (32, 56, 96)


def get_inputs():
    return [torch.randn(batch, size, size, channels)]


def get_init_inputs():
    return [channels]
