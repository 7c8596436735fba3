import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Causal attention written out: scores, a mask, softmax, and heads put together again."""

    def __init__(self, features, heads, longest):
        super().__init__()
        self.heads = heads
        self.attend = nn.Linear(features, 3 * features)
        self.project = nn.Linear(features, features)
        self.register_buffer("mask", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.attend(x).split(c, dim=2)
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.project(y.transpose(1, 2).contiguous().view(b, t, c))


batch, length, features, heads = (2, 10, 16, 4) if SMALL else (16, 512, 768, 8)
longest = 2 * length


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return [features, heads, longest]
