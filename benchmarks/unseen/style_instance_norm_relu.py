import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Style transfer: reflection padding, convolution, an affine instance norm, relu."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.conv = nn.Conv2d(c_in, c_out, 3)
        self.norm = nn.InstanceNorm2d(c_out, affine=True)

    def forward(self, x):
        return F.relu(self.norm(self.conv(self.pad(x))))


batch, c_in, c_out, h, w = (2, 4, 6, 10, 12) if SMALL else (36, 64, 128, 112, 128)


def get_inputs():
    return [torch.randn(batch, c_in, h, w)]


def get_init_inputs():
    return [c_in, c_out]
