"""Written by zoo/generate.py, seed 1017."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv3d: max pool, scale, clamp, clamp, sum over 1, 2, clamp."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv3d(in_channels, out_channels, 3, padding=1)

    def forward(self, x):
        x = self.anchor(x)
        x = F.max_pool3d(x, 3, stride=2, padding=1)
        x = x * 0.94
        x = torch.clamp(x, min=-0.71, max=1.06)
        x = torch.clamp(x, max=1.06)
        x = torch.sum(x, dim=(1, 2), keepdim=True)
        x = torch.clamp(x, min=-0.53, max=1.01)
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 8, 9, 10) if SMALL else (8, 16, 32, 24, 56, 56)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
