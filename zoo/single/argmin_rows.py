import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Positions of the smallest elements of rows, kept as a column, and of the whole tensor."""

    def forward(self, x):
        return torch.argmin(x, dim=-1, keepdim=True), torch.argmin(x)


rows, columns = (15, 90) if SMALL else (8192, 8192)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
