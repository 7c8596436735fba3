import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Block(nn.Module):
    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class Model(nn.Module):
    """A residual network of eighteen layers, in evaluation."""

    def __init__(self, width, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages = []
        for i in range(4):
            before, here = width * 2 ** max(i - 1, 0), width * 2**i
            stages.append(nn.Sequential(Block(before, here, 1 if i == 0 else 2), Block(here, here, 1)))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(width * 8, classes)
        self.eval()

    def forward(self, x):
        x = self.pool(F.relu(self.bn(self.conv(x))))
        x = F.adaptive_avg_pool2d(self.stages(x), 1)
        return self.head(torch.flatten(x, 1))


batch, size, width, classes = (2, 33, 4, 10) if SMALL else (64, 224, 64, 1000)


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [width, classes]
