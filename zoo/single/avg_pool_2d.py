import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Average pooling whose padding does not count, in ceil mode."""

    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.pool = nn.AvgPool2d(kernel, stride, padding, ceil_mode=True, count_include_pad=False)

    def forward(self, x):
        return self.pool(x)


batch, channels, height, width = (2, 5, 14, 17) if SMALL else (32, 64, 224, 224)
kernel, stride, padding = 3, 2, 1


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [kernel, stride, padding]
