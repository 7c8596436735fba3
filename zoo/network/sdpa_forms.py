import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Attention by PyTorch's function: few key heads, a scale of its own, a mask of numbers, causal, unbatched heads."""

    def __init__(self, heads, scale=None):
        super().__init__()
        self.slopes = nn.Parameter(2.0 ** -torch.arange(1, heads + 1).float(), requires_grad=False)
        self.scale = scale

    def forward(self, q, k, v):
        n = q.shape[-2]
        at = torch.arange(n, device=q.device)
        far = (at[None, :] - at[:, None]).abs() * -self.slopes[:, None, None]
        alibi = F.scaled_dot_product_attention(q, k, v, attn_mask=far, scale=self.scale, enable_gqa=True)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        near = (at[None, :] - at[:, None]).abs() < 5
        local = F.scaled_dot_product_attention(q[:, 0], k[:, 0], v[:, 0], near, dropout_p=0.0)
        return alibi, causal, local


batch, heads, few, length, width = (2, 4, 2, 9, 6) if SMALL else (8, 16, 4, 512, 64)


def get_inputs():
    return [torch.randn(batch, heads, length, width), torch.randn(batch, few, length, width), torch.randn(batch, few, length, width)]


def get_init_inputs():
    return [heads, 0.3]
