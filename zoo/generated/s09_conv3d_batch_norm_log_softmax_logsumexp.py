"""Written by zoo/generate.py, seed 9."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv3d: batch norm, log_softmax over 1, logsumexp over 1, 2, silu, shift."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv3d(in_channels, out_channels, 3, padding=1)
        self.norm1 = nn.BatchNorm3d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = self.norm1(x)
        x = F.log_softmax(x, dim=1)
        x = torch.logsumexp(x, dim=(1, 2), keepdim=True)
        x = F.silu(x)
        x = x + 0.65
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 8, 9, 10) if SMALL else (8, 16, 32, 24, 56, 56)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
