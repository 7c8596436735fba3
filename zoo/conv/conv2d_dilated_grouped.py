import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A dilated, grouped convolution, softplus, a product of two halves of the channels."""

    def __init__(self, in_channels, out_channels, kernel, groups):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding="same", dilation=2, groups=groups)

    def forward(self, x):
        left, right = self.conv(x).chunk(2, dim=1)
        return F.softplus(left) * torch.sigmoid(right)


batch, in_channels, out_channels, height, width = (2, 6, 8, 12, 13) if SMALL else (32, 64, 128, 112, 112)
kernel, groups = 3, 2


def get_inputs():
    return [torch.rand(batch, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel, groups]
