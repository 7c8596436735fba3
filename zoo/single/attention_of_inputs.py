import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Causal attention by PyTorch's function, heads 32 wide, queries fewer than keys elsewhere."""

    def forward(self, q, k, v, short):
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return causal, F.scaled_dot_product_attention(short, k, v)


batch, heads, length, few, width = (1, 2, 37, 5, 32) if SMALL else (8, 12, 1023, 65, 32)


def get_inputs():
    return [torch.randn(batch, heads, n, width) for n in (length, length, length, few)]


def get_init_inputs():
    return []
