"""Written by zoo/generate.py, seed 1012."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose2d: relu6, softmax over 2, clamp, batch norm, instance norm, mean over 2, 3."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.norm2 = nn.InstanceNorm2d(out_channels)

    def forward(self, x):
        x = self.anchor(x)
        x = F.relu6(x)
        x = F.softmax(x, dim=2)
        x = torch.clamp(x, max=0.95)
        x = self.norm1(x)
        x = self.norm2(x)
        x = torch.mean(x, dim=(2, 3), keepdim=True)
        return x


batch, in_channels, out_channels, height, width = (2, 4, 8, 7, 8) if SMALL else (32, 32, 64, 80, 80)


def get_inputs():
    return [torch.randn(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels]
