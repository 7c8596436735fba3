import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Max pooling with overlapping, padded windows."""

    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel, stride, padding)

    def forward(self, x):
        return self.pool(x)


batch, channels, height, width = (2, 5, 15, 18) if SMALL else (32, 64, 224, 224)
kernel, stride, padding = 3, 2, 1


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [kernel, stride, padding]
