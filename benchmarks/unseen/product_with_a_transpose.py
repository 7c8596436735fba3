import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A learned matrix, transposed, times an input."""

    def __init__(self, depth, rows):
        super().__init__()
        self.basis = nn.Parameter(torch.randn(depth, rows) / depth**0.5)

    def forward(self, x):
        return self.basis.t() @ x


depth, rows, columns = (24, 17, 19) if SMALL else (3000, 1800, 4100)


def get_inputs():
    return [torch.randn(depth, columns)]


def get_init_inputs():
    return [depth, rows]
