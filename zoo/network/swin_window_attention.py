import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Attention within shifted windows with a table of relative positions and a mask, and an MLP."""

    def __init__(self, dim, heads, window, size):
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = (coords[:, :, None] - coords[:, None, :]) + window - 1
        self.register_buffer("index", relative[0] * (2 * window - 1) + relative[1])
        regions = torch.zeros(1, size, size, 1)
        count = 0
        for h in (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None)):
            for w in (slice(0, -window), slice(-window, -self.shift), slice(-self.shift, None)):
                regions[:, h, w, :] = count
                count += 1
        regions = self.cut(regions).squeeze(-1)
        different = regions.unsqueeze(1) != regions.unsqueeze(2)
        self.register_buffer("mask", torch.zeros(different.shape).masked_fill(different, -100.0))

    def cut(self, x):
        b, h, w, c = x.shape
        x = x.view(b, h // self.window, self.window, w // self.window, self.window, c)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, self.window * self.window, c)

    def forward(self, x):
        b, h, w, c = x.shape
        y = self.cut(torch.roll(self.norm1(x), shifts=(-self.shift, -self.shift), dims=(1, 2)))
        n = self.window**2
        q, k, v = self.qkv(y).reshape(-1, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        scores = scores + self.bias_table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        windows = self.mask.shape[0]
        scores = (scores.view(b, windows, self.heads, n, n) + self.mask[None, :, None]).view(-1, self.heads, n, n)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, n, c)
        y = self.proj(y).view(b, h // self.window, w // self.window, self.window, self.window, c)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + self.mlp(self.norm2(x))


batch, size, dim, heads, window = (2, 8, 12, 3, 4) if SMALL else (16, 56, 96, 3, 7)


def get_inputs():
    return [torch.randn(batch, size, size, dim)]


def get_init_inputs():
    return [dim, heads, window, size]
