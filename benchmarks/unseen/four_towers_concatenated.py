import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Conv(nn.Sequential):
    def __init__(self, c_in, c_out, kernel):
        super().__init__(nn.Conv2d(c_in, c_out, kernel, padding=kernel // 2), nn.ReLU(inplace=True))


class Model(nn.Module):
    """An inception-like module: towers of 1x1, 3x3, 5x5 and a pool, joined on the channels."""

    def __init__(self, c_in, one, three, five, pooled):
        super().__init__()
        self.one = Conv(c_in, one, 1)
        self.three = nn.Sequential(Conv(c_in, three // 2, 1), Conv(three // 2, three, 3))
        self.five = nn.Sequential(Conv(c_in, five // 2, 1), Conv(five // 2, five, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), Conv(c_in, pooled, 1))

    def forward(self, x):
        return torch.cat([tower(x) for tower in (self.one, self.three, self.five, self.pool)], 1)


batch, size = (2, 8) if SMALL else (64, 48)
widths = (6, 4, 6, 4, 3) if SMALL else (192, 64, 128, 48, 40)


def get_inputs():
    return [torch.randn(batch, widths[0], size, size)]


def get_init_inputs():
    return list(widths)
