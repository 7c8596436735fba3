import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Vectors divided by their norm of order three, norms of other orders, rows whose norm is limited."""

    def __init__(self, p, limit):
        super().__init__()
        self.p, self.limit = p, limit

    def forward(self, x):
        y = F.normalize(x, p=self.p, dim=1, eps=1e-6)
        limited = torch.renorm(x, p=2, dim=0, maxnorm=self.limit)
        zero = torch.norm(torch.relu(x), p=0, dim=1)
        return y, limited, zero, torch.linalg.vector_norm(x, float("inf"), dim=(0, 1)), x.norm(p=1.5, dim=-1)


rows, columns = (9, 30) if SMALL else (8000, 3000)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return [3, 10.0]
