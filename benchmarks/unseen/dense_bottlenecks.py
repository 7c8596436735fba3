import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Bottleneck(nn.Module):
    def __init__(self, planes, growth):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(planes)
        self.conv1 = nn.Conv2d(planes, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        new = self.conv1(torch.relu(self.norm1(x)))
        new = self.conv2(torch.relu(self.norm2(new)))
        return torch.cat((x, new), 1)


class Model(nn.Module):
    """Four dense layers with bottlenecks in training, each behind the concatenation so far."""

    def __init__(self, planes, growth, depth):
        super().__init__()
        self.blocks = nn.Sequential(*[Bottleneck(planes + growth * i, growth) for i in range(depth)])

    def forward(self, x):
        return self.blocks(x)


batch, planes, growth, depth, size = (2, 6, 3, 2, 7) if SMALL else (64, 96, 24, 4, 36)


def get_inputs():
    return [torch.randn(batch, planes, size, size)]


def get_init_inputs():
    return [planes, growth, depth]
