import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """RMS norm written out by hand, over the last dimension."""

    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


rows, features = (18, 80) if SMALL else (32768, 2048)
eps = 1e-6


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features, eps]
