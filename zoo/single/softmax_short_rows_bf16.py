import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Softmax of many short rows, as in attention, in bf16."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)


batch, heads, queries, keys = (2, 3, 10, 40) if SMALL else (32, 16, 512, 512)
scale = 0.125


def get_inputs():
    return [torch.randn(batch, heads, queries, keys, dtype=torch.bfloat16)]


def get_init_inputs():
    return [scale]
