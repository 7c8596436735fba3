import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Products written as einsum: batched, with a transposed operand, a bilinear form."""

    def forward(self, a, b, w):
        scores = torch.einsum("bqd,bkd->bqk", a, b)
        return torch.einsum("bqk,bkd,de->bqe", scores, b, w) * 0.1


batch, length, features = (2, 9, 12) if SMALL else (16, 1024, 256)


def get_inputs():
    return [
        torch.randn(batch, length, features),
        torch.randn(batch, length, features),
        torch.randn(features, features),
    ]


def get_init_inputs():
    return []
