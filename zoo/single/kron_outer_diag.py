import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A Kronecker product, outer products, vectors made diagonal matrices."""

    def forward(self, a, b, u, v):
        outer = torch.outer(u, v) + torch.einsum("i,j->ij", u.sin(), v)
        return torch.kron(a, b), outer, torch.diag_embed(torch.stack([u, v], 0), offset=1)


n, m = (3, 12) if SMALL else (64, 2048)


def get_inputs():
    return [torch.randn(n, n - 1), torch.randn(n + 1, n), torch.randn(m), torch.randn(m)]


def get_init_inputs():
    return []
