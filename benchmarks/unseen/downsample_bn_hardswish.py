import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution of stride 2 with a bias in front of a batch norm, then hardswish."""

    def __init__(self, in_planes, out_planes, momentum):
        super().__init__()
        self.down = nn.Conv2d(in_planes, out_planes, kernel_size=3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(out_planes, momentum=momentum)
        self.act = nn.Hardswish()

    def forward(self, x):
        return self.act(self.norm(self.down(x)))


batch, in_planes, out_planes, h, w = (2, 5, 8, 11, 10) if SMALL else (96, 128, 256, 72, 72)


def get_inputs():
    return [torch.randn(batch, in_planes, h, w)]


def get_init_inputs():
    return [in_planes, out_planes, 0.03]
