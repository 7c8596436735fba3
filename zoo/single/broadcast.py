import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Broadcasts of every kind: a column, a row, a scalar parameter, a middle dimension."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels, 1))
        self.shift = nn.Parameter(torch.randn(()))

    def forward(self, x, column, row):
        return (x + column) * self.scale + row * self.shift - column * row


batch, channels, length = (3, 10, 33) if SMALL else (64, 256, 4096)


def get_inputs():
    return [torch.randn(batch, channels, length), torch.randn(batch, channels, 1), torch.randn(length)]


def get_init_inputs():
    return [channels]
