import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Instance norm of volumes, without weights."""

    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm3d(channels)

    def forward(self, x):
        return self.norm(x)


batch, channels, depth, height, width = (2, 3, 5, 6, 7) if SMALL else (8, 32, 32, 64, 64)


def get_inputs():
    return [torch.randn(batch, channels, depth, height, width)]


def get_init_inputs():
    return [channels]
