import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A critic whose weights are divided by their largest singular value: a step of power iteration on every forward."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.utils.spectral_norm(nn.Conv2d(3, channels, 3))
        self.judge = nn.utils.parametrizations.spectral_norm(nn.Linear(channels, 1))

    def forward(self, x):
        return self.judge(F.leaky_relu(self.conv(x), 0.1).mean((2, 3))).relu()


batch, channels, size = (2, 6, 9) if SMALL else (32, 128, 128)


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [channels]
