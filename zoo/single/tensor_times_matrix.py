import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 4-d tensor times a matrix along its last and along its second dimension."""

    def forward(self, x, a, b):
        last = torch.einsum("bijl,lk->bijk", x, a)
        second = torch.einsum("bijl,ik->bkjl", x, b)
        return last, second


shape, k = ((2, 5, 6, 7), 4) if SMALL else ((8, 96, 128, 200), 130)


def get_inputs():
    return [torch.randn(*shape), torch.randn(shape[3], k), torch.randn(shape[1], k)]


def get_init_inputs():
    return []
