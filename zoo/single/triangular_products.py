import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A product of symmetric matrices, one of lower triangles, and a diagonal times a matrix."""

    def forward(self, a, b, d):
        return a @ b, torch.tril(torch.tril(a) @ torch.tril(b)), torch.diag(d) @ b


n = 33 if SMALL else 2047


def get_inputs():
    a, b = torch.randn(n, n), torch.randn(n, n)
    return [(a + a.T) / 2, (b + b.T) / 2, torch.randn(n)]


def get_init_inputs():
    return []
