import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Running products of rows: what is left of a value that shrinks a little with every step."""

    def forward(self, x):
        return torch.cumprod(1 - 0.01 * torch.sigmoid(x), dim=1)


rows, columns = (12, 90) if SMALL else (8192, 8192)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
