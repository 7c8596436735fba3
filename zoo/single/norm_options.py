import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Norms in training with unusual options: no weights, no statistics, averages over all batches, kept statistics."""

    def __init__(self, channels):
        super().__init__()
        self.plain = nn.BatchNorm2d(channels, affine=False, eps=1e-3)
        self.alone = nn.BatchNorm2d(channels, track_running_stats=False)
        self.average = nn.BatchNorm2d(channels, momentum=None)
        self.instance = nn.InstanceNorm2d(channels, affine=True, track_running_stats=True, momentum=0.3)
        self.group = nn.GroupNorm(channels // 2, channels, affine=False, eps=1e-2)

    def forward(self, x):
        return self.plain(x) + self.alone(x), torch.relu(self.average(x)) * self.group(x), self.instance(x)


batch, channels, height, width = (4, 6, 7, 5) if SMALL else (32, 64, 112, 112)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
