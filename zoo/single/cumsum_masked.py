import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Running sums of what a mask lets through, and running products."""

    def forward(self, x, mask):
        return torch.cumsum(x * mask, dim=1), torch.cumprod(1 + 0.01 * x, dim=1)


rows, columns = (12, 70) if SMALL else (8192, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.rand(rows, columns) > 0.5]


def get_init_inputs():
    return []
