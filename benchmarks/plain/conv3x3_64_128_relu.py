"""A convolution of 64 to 128 channels and a relu, at a large batch: what its verification takes of a GPU's memory."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.rand(128, 64, 128, 128)]


def get_init_inputs():
    return [64, 128]
