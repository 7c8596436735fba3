import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A shuffle unit: the channels split, one half convolved, joined and shuffled."""

    def __init__(self, channels, groups):
        super().__init__()
        half = channels // 2
        self.groups = groups
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
        )

    def forward(self, x):
        kept, changed = torch.split(x, x.shape[1] // 2, dim=1)
        x = torch.cat((kept, self.branch(changed)), dim=1)
        b, c, h, w = x.shape
        return x.view(b, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(b, c, h, w)


batch, channels, size = (2, 8, 7) if SMALL else (64, 116, 56)
groups = 2


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, groups]
