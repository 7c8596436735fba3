import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3-D convolution of three bands, elu, average pooling and a learned gain for each channel."""

    def __init__(self, bands, features):
        super().__init__()
        self.conv = nn.Conv3d(bands, features, 3, padding=1)
        self.gain = nn.Parameter(torch.rand(features, 1, 1, 1) + 0.5)

    def forward(self, cube):
        h = F.elu(self.conv(cube), alpha=0.8)
        return F.avg_pool3d(h, 2) * self.gain


batch, bands, features = (2, 3, 5) if SMALL else (12, 3, 24)
size = (6, 8, 10) if SMALL else (32, 96, 96)


def get_inputs():
    return [torch.rand(batch, bands, *size)]


def get_init_inputs():
    return [bands, features]
