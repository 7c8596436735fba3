"""Written by zoo/generate.py, seed 1024."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv3d: leaky relu, sigmoid, scale, a learned tensor, log_softmax over 2, subtract."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv3d(in_channels, out_channels, 3)
        self.factor1 = nn.Parameter(torch.randn(out_channels, 1, 1, 1))

    def forward(self, x):
        x = self.anchor(x)
        x = F.leaky_relu(x, 0.2)
        x = torch.sigmoid(x)
        x = x * 2.05
        x = x - self.factor1
        x = F.log_softmax(x, dim=2)
        x = x - 1.2
        return x


batch, in_channels, out_channels, depth, height, width = (2, 2, 8, 8, 9, 10) if SMALL else (8, 16, 32, 24, 56, 56)


def get_inputs():
    return [torch.randn(batch, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
