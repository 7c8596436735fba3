"""The third founding model with stride 2, padding 1 and output padding 1."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        x = self.conv(x).mean(dim=(2, 3), keepdim=True) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True) * 10.0


def get_inputs():
    return [torch.rand(16, 64, 256, 256)]


def get_init_inputs():
    return [64, 128]
