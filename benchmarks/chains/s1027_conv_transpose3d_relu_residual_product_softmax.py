"""Written by zoo/generate.py, seed 1027."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose3d: relu, residual product, softmax over 1."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose3d(in_channels, out_channels, 3)

    def forward(self, x):
        x = self.anchor(x)
        kept = x
        x = torch.relu(x)
        x = x * kept
        x = F.softmax(x, dim=1)
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 5, 6, 5) if SMALL else (16, 16, 32, 16, 40, 40)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
