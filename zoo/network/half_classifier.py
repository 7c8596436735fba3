import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution, a norm in training, averages and maxima over positions, a head and its choice, all in fp16."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)
        self.half()

    def forward(self, x):
        y = F.hardswish(self.norm(self.conv(x)))
        scores = F.softmax(self.head(y.mean((2, 3))), -1)
        return scores, y.amax((2, 3)), scores.amax(-1)


batch, channels, size = (2, 6, 8) if SMALL else (32, 128, 112)


def get_inputs():
    return [torch.randn(batch, 3, size, size).half()]


def get_init_inputs():
    return [channels, 10]
