import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Basic(nn.Module):
    def __init__(self, planes):
        super().__init__()
        self.conv1 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


class Model(nn.Module):
    """Five residual blocks in training with only two images."""

    def __init__(self, planes, blocks):
        super().__init__()
        self.stage = nn.Sequential(*(Basic(planes) for _ in range(blocks)))

    def forward(self, x):
        return self.stage(x)


batch, planes, blocks, size = (2, 5, 2, 8) if SMALL else (2, 128, 5, 64)


def get_inputs():
    return [torch.randn(batch, planes, size, size)]


def get_init_inputs():
    return [planes, blocks]
