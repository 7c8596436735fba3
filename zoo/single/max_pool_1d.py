import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Max pooling in 1-d with dilation and padding."""

    def __init__(self, kernel, stride, padding, dilation):
        super().__init__()
        self.pool = nn.MaxPool1d(kernel, stride, padding, dilation)

    def forward(self, x):
        return self.pool(x)


batch, channels, length = (3, 5, 40) if SMALL else (64, 192, 8192)
kernel, stride, padding, dilation = 5, 2, 2, 3


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [kernel, stride, padding, dilation]
