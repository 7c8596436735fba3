import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Average pooling of volumes."""

    def __init__(self, kernel):
        super().__init__()
        self.pool = nn.AvgPool3d(kernel)

    def forward(self, x):
        return self.pool(x)


batch, channels, depth, height, width = (2, 3, 6, 8, 10) if SMALL else (8, 64, 64, 64, 64)
kernel = 2


def get_inputs():
    return [torch.randn(batch, channels, depth, height, width)]


def get_init_inputs():
    return [kernel]
