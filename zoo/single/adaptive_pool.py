import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Adaptive average pooling to one, to an even and to an uneven division, and adaptive max pooling."""

    def forward(self, x):
        one = F.adaptive_avg_pool2d(x, 1)
        even = F.adaptive_avg_pool2d(x, (4, 2))
        uneven = F.adaptive_avg_pool2d(x, (3, 5))
        return one, even, uneven, F.adaptive_max_pool2d(x, (2, 3))


batch, channels, height, width = (2, 6, 16, 14) if SMALL else (32, 128, 112, 112)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
