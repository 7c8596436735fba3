"""Written by zoo/generate.py, seed 10."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv_transpose1d: leaky relu, softmax over 2, sigmoid, divide, softplus, tanh."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.ConvTranspose1d(in_channels, out_channels, 3, stride=2, padding=1)

    def forward(self, x):
        x = self.anchor(x)
        x = F.leaky_relu(x, 0.01)
        x = F.softmax(x, dim=2)
        x = torch.sigmoid(x)
        x = x / 0.85
        x = F.softplus(x)
        x = torch.tanh(x)
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 11) if SMALL else (64, 128, 128, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
