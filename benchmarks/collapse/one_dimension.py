"""The third founding model in one dimension."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, 5, padding=2)
        self.bias = nn.Parameter(torch.randn(out_channels, 1))

    def forward(self, x):
        x = self.conv(x).mean(dim=(2,), keepdim=True) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True) * 10.0


def get_inputs():
    return [torch.rand(16, 64, 65536)]


def get_init_inputs():
    return [64, 128]
