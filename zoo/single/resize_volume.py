import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A volume interpolated along all three directions, and rows along theirs."""

    def forward(self, x, rows):
        twice = F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)
        return F.leaky_relu(twice, 0.1), F.interpolate(rows, scale_factor=2.5, mode="linear", align_corners=True) * 2


batch, channels, size = (2, 3, 5) if SMALL else (4, 16, 48)


def get_inputs():
    return [torch.randn(batch, channels, size, size, size + 2), torch.randn(batch, channels, 1000 * size)]


def get_init_inputs():
    return []
