import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A low-rank layer used three times, with its own transpose to read out; an update by a low-rank adapter."""

    def __init__(self, features, rank, alpha=16):
        super().__init__()
        self.table = nn.Linear(features, features, bias=False)
        self.a = nn.Parameter(torch.randn(rank, features) * 0.02)
        self.b = nn.Parameter(torch.randn(features, rank) * 0.02)
        self.scale = alpha / rank

    def forward(self, x):
        for i in range(3):
            x = self.table(x) + (x @ self.a.t() @ self.b.t()) * self.scale
            if i < 2:
                x = torch.relu(x)
        return x @ self.table.weight


rows, features, rank = (9, 24, 4) if SMALL else (4096, 1000, 8)


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features, rank]
