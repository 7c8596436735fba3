import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Linear attention: elu plus one as feature map, keys and values summed once, no matrix of scores."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.einsum("bhnd,bhne->bhde", k, v)
        scale = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)) + 1e-6)
        y = torch.einsum("bhnd,bhde,bhn->bhne", q, memory, scale)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


batch, length, dim, heads = (2, 9, 12, 3) if SMALL else (8, 3001, 512, 8)


def get_inputs():
    return [torch.randn(batch, length, dim)]


def get_init_inputs():
    return [dim, heads]
