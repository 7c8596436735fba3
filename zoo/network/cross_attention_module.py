import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """nn.MultiheadAttention over another sequence with a mask of padding, a residual and a norm after it."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x, memory, padded):
        y, weights = self.attn(x, memory, memory, key_padding_mask=padded, need_weights=True)
        return self.norm(y + x), weights


batch, queries, keys, dim, heads = (2, 5, 7, 12, 3) if SMALL else (16, 200, 577, 768, 12)


def get_inputs():
    padded = torch.zeros(batch, keys, dtype=torch.bool)
    padded[:, -2:] = True
    return [torch.randn(batch, queries, dim), torch.randn(batch, keys, dim), padded]


def get_init_inputs():
    return [dim, heads]
