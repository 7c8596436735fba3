import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Max pooling of volumes in ceil mode."""

    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.pool = nn.MaxPool3d(kernel, stride, padding, ceil_mode=True)

    def forward(self, x):
        return self.pool(x)


batch, channels, depth, height, width = (2, 3, 8, 9, 11) if SMALL else (8, 32, 64, 64, 64)
kernel, stride, padding = 3, 2, 1


def get_inputs():
    return [torch.randn(batch, channels, depth, height, width)]


def get_init_inputs():
    return [kernel, stride, padding]
