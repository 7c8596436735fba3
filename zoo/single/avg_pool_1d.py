import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Average pooling in 1-d with padding that counts."""

    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.pool = nn.AvgPool1d(kernel, stride, padding)

    def forward(self, x):
        return self.pool(x)


batch, channels, length = (3, 5, 41) if SMALL else (64, 192, 8192)
kernel, stride, padding = 4, 2, 1


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [kernel, stride, padding]
