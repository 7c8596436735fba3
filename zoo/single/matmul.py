import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """One matrix product: nothing to fuse."""

    def forward(self, a, b):
        return torch.matmul(a, b)


n, m, k = (33, 21, 17) if SMALL else (4096, 4096, 2048)


def get_inputs():
    return [torch.randn(n, k), torch.randn(k, m)]


def get_init_inputs():
    return []
