import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Batches of vectors: matrix times vector, dot products, sums of outer products, baddbmm and addmv."""

    def forward(self, m, u, v):
        product = torch.bmm(m, u.unsqueeze(-1)).squeeze(-1)
        dots = torch.einsum("bn,bn->b", u, v)
        total = torch.addmv(v[0], m[0], u[0], beta=0.5, alpha=2)
        outer = torch.baddbmm(m, u[:, :, None], v[:, None, :], beta=0.25)
        return product.relu(), dots, total, outer, (m * v.unsqueeze(1)).sum(-1)


batch, size = (3, 13) if SMALL else (64, 1000)


def get_inputs():
    return [torch.randn(batch, size, size), torch.randn(batch, size), torch.randn(batch, size)]


def get_init_inputs():
    return []
