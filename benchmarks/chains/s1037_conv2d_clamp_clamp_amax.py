"""Written by zoo/generate.py, seed 1037."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv2d: clamp, clamp, amax over 3, sigmoid, divide, hardsigmoid."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv2d(in_channels, out_channels, 3)

    def forward(self, x):
        x = self.anchor(x)
        x = torch.clamp(x, min=-0.89, max=0.23)
        x = torch.clamp(x, min=-0.86)
        x = torch.amax(x, dim=(3,), keepdim=True)
        x = torch.sigmoid(x)
        x = x / 1.92
        x = F.hardsigmoid(x)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 15, 14) if SMALL else (64, 32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
