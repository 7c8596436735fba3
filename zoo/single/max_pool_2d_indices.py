import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Max pooling that also returns where the maxima were."""

    def forward(self, x):
        return F.max_pool2d(x, 2, return_indices=True)


batch, channels, height, width = (2, 4, 12, 10) if SMALL else (16, 64, 256, 256)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
