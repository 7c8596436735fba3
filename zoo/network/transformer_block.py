import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A transformer block: layer norms, attention by torch's own function, a feed-forward layer."""

    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(features)
        self.qkv = nn.Linear(features, 3 * features)
        self.proj = nn.Linear(features, features)
        self.norm2 = nn.LayerNorm(features)
        self.mlp = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


batch, length, features, heads = (2, 9, 24, 3) if SMALL else (16, 1024, 768, 12)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return [features, heads]
