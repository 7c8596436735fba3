"""The third founding model in three dimensions."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose3d(in_channels, out_channels, 3)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1, 1))

    def forward(self, x):
        x = self.conv(x).mean(dim=(2, 3, 4), keepdim=True) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True) * 10.0


def get_inputs():
    return [torch.rand(8, 64, 32, 64, 64)]


def get_init_inputs():
    return [64, 128]
