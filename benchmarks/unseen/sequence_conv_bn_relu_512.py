import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution along sequences from 256 to 512 channels, batch norm in training, relu, every second step kept."""

    def __init__(self, dims):
        super().__init__()
        self.conv = nn.Conv1d(dims[0], dims[1], kernel_size=5, padding=2)
        self.bn = nn.BatchNorm1d(dims[1])
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)))[:, :, ::2]


dims = (6, 10) if SMALL else (256, 512)
batch, length = (3, 19) if SMALL else (48, 1500)


def get_inputs():
    return [torch.randn(batch, dims[0], length)]


def get_init_inputs():
    return [dims]
