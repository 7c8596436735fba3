import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Triangular and symmetric products of batches of matrices, their diagonals, a diagonal matrix times a matrix."""

    def forward(self, a, b, d):
        lower = torch.tril(torch.bmm(torch.tril(a), torch.tril(b)))
        symmetric = (a + a.transpose(1, 2)) / 2
        scaled = torch.diag(d) @ b[0]
        return lower, symmetric.triu(1), scaled, torch.diagonal(symmetric, dim1=1, dim2=2).sum(-1)


batch, size = (3, 9) if SMALL else (16, 777)


def get_inputs():
    return [torch.randn(batch, size, size), torch.randn(batch, size, size), torch.rand(size)]


def get_init_inputs():
    return []
