import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Queries and keys turned by their positions: halves rotated, tables as buffers, one head as a view."""

    def __init__(self, head: int, longest: int, base: float = 10000.0):
        super().__init__()
        angles = torch.outer(torch.arange(longest).float(), base ** (-torch.arange(0, head, 2).float() / head))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1), persistent=False)

    @staticmethod
    def rotated(x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)

    def forward(self, q, k):
        n = q.shape[-2]
        cos, sin = self.cos[:n], self.sin[:n]
        return q * cos + self.rotated(q) * sin, k * cos + self.rotated(k) * sin


batch, heads, length, head = (2, 3, 10, 8) if SMALL else (8, 16, 2000, 64)


def get_inputs():
    return [torch.randn(batch, heads, length, head), torch.randn(batch, heads // 2 or 1, length, head)]


def get_init_inputs():
    return [head, length + 24]
