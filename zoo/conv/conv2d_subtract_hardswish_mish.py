import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Convolution, a subtraction, hardswish, max pooling and mish."""

    def __init__(self, in_channels, out_channels, kernel, subtracted):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel)
        self.subtracted = subtracted

    def forward(self, x):
        x = F.hardswish(self.conv(x) - self.subtracted)
        return F.mish(F.max_pool2d(x, 2))


batch, in_channels, out_channels, height, width = (2, 3, 8, 11, 12) if SMALL else (64, 32, 128, 96, 96)
kernel, subtracted = 3, 0.5


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, subtracted]
