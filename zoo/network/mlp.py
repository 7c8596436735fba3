import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A multi-layer perceptron with layer norms."""

    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes[1:-1])

    def forward(self, x):
        for i, norm in enumerate(self.norms):
            x = F.gelu(norm(self.layers[i](x)))
        return self.layers[-1](x)


batch = 7 if SMALL else 8192
sizes = (12, 32, 24, 10) if SMALL else (1024, 4096, 2048, 1000)


def get_inputs():
    return [torch.randn(batch, sizes[0])]


def get_init_inputs():
    return [sizes]
