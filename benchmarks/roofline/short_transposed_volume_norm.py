import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3-d of three channels, batch norm, pools: short."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels_in, channels_out, kernel, stride=2, padding=1)
        self.norm = nn.BatchNorm3d(channels_out)

    def forward(self, x):
        return nn.functional.avg_pool3d(self.norm(self.conv(x)), 4)


batch, depth, height, width = (2, 6, 7, 9) if SMALL else (64, 16, 32, 32)


def get_inputs():
    return [torch.rand(batch, 3, depth, height, width)]


def get_init_inputs():
    return [3, 16, 3]
