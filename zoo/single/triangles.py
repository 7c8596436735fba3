import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Upper and lower triangles with a diagonal, and a causal mask."""

    def forward(self, x):
        mask = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
        return torch.triu(x, 1) + 2 * torch.tril(x, -2), x.masked_fill(~mask, float("-inf")).softmax(-1)


batch, n = (3, 21) if SMALL else (16, 2048)


def get_inputs():
    return [torch.randn(batch, n, n)]


def get_init_inputs():
    return []
