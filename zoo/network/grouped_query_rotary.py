import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)).to(x.dtype)


class Model(nn.Module):
    """A decoder layer: RMS norm, fewer keys than queries, rotary positions computed on the way, causal attention, gated MLP."""

    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv_heads * self.head, bias=False) for _ in range(2))
        self.wo = nn.Linear(dim, dim, bias=False)
        self.norms = nn.ModuleList([RMSNorm(dim), RMSNorm(dim)])
        self.gate, self.up, self.down = (
            nn.Linear(dim, hidden, bias=False),
            nn.Linear(dim, hidden, bias=False),
            nn.Linear(hidden, dim, bias=False),
        )

    def rotate(self, x, positions):
        rates = 1.0 / (10000 ** (torch.arange(0, self.head, 2, device=x.device).float() / self.head))
        angles = positions[:, None].float() * rates
        cos, sin = angles.cos(), angles.sin()
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)

    def forward(self, x, positions):
        b, t, _ = x.shape
        h = self.norms[0](x)
        q = self.wq(h).view(b, t, self.heads, self.head).transpose(1, 2)
        k = self.wk(h).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        v = self.wv(h).view(b, t, self.kv_heads, self.head).transpose(1, 2)
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, -1))
        h = self.norms[1](x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


batch, length, dim, heads, kv_heads, hidden = (2, 6, 16, 4, 2, 20) if SMALL else (4, 777, 1024, 16, 4, 2730)


def get_inputs():
    return [torch.randn(batch, length, dim), torch.arange(length)]


def get_init_inputs():
    return [dim, heads, kv_heads, hidden]
