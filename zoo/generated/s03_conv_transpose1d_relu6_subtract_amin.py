"""Written by zoo/generate.py, seed 3."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose1d: relu6, subtract, amin over 1, mean over 2."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose1d(in_channels, out_channels, 3)

    def forward(self, x):
        x = self.anchor(x)
        x = F.relu6(x)
        x = x - 1.63
        x = torch.amin(x, dim=(1,), keepdim=True)
        x = torch.mean(x, dim=(2,), keepdim=True)
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 11) if SMALL else (64, 128, 128, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
