"""Written by zoo/generate.py, seed 1031."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv3d: relu6, log_softmax over 3, avg pool, silu, softplus, residual sum."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv3d(in_channels, out_channels, 3)

    def forward(self, x):
        x = self.anchor(x)
        x = F.relu6(x)
        x = F.log_softmax(x, dim=3)
        x = F.avg_pool3d(x, 2)
        kept = x
        x = F.silu(x)
        x = F.softplus(x)
        x = x + kept
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 8, 9, 10) if SMALL else (8, 16, 32, 24, 56, 56)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
