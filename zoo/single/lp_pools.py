import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Power-average pools of an image and of a signal."""

    def __init__(self, order, window):
        super().__init__()
        self.pool = nn.LPPool2d(order, window, stride=2)
        self.other = nn.LPPool1d(1, 3)

    def forward(self, x):
        y = self.pool(x)
        return y, self.other(x.flatten(2))


shape = (2, 3, 9, 11) if SMALL else (16, 64, 127, 131)


def get_inputs():
    return [torch.rand(*shape)]


def get_init_inputs():
    return [2, (3, 2)]
