import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """RMS norm by hand over the channels of an image."""

    def __init__(self, channels, eps):
        super().__init__()
        self.channels = channels
        self.eps = eps

    def forward(self, x):
        rms = torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + self.eps)
        return x / rms


batch, channels, height, width = (2, 12, 9, 14) if SMALL else (32, 64, 256, 128)
eps = 1e-5


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels, eps]
