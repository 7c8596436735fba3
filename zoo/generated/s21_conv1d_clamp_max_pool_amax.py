"""Written by zoo/generate.py, seed 21."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv1d: clamp, max pool, amax over 1, shift, amin over 2, leaky relu."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv1d(in_channels, out_channels, 3, stride=2)

    def forward(self, x):
        x = self.anchor(x)
        x = torch.clamp(x, max=1.72)
        x = F.max_pool1d(x, 2)
        x = torch.amax(x, dim=(1,), keepdim=True)
        x = x + 0.45
        x = torch.amin(x, dim=(2,), keepdim=True)
        x = F.leaky_relu(x, 0.1)
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 24) if SMALL else (64, 128, 256, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
