import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Norm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x, cos, sin):
    """Pairs of features turned by an angle that grows with the position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = Norm(features), Norm(features)
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        self.gate = nn.Linear(features, 2 * features, bias=False)
        self.up = nn.Linear(features, 2 * features, bias=False)
        self.down = nn.Linear(2 * features, features, bias=False)

    def forward(self, x, cos, sin):
        b, n, c = x.shape
        q, k, v = self.qkv(self.first(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, c))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """A small language model: RMS norms, rotary positions, gated layers, tied embeddings, a loss."""

    def __init__(self, words, features, heads, layers):
        super().__init__()
        self.embed = nn.Embedding(words, features)
        self.layers = nn.ModuleList(Layer(features, heads) for _ in range(layers))
        self.norm = Norm(features)
        self.head = nn.Linear(features, words, bias=False)
        self.head.weight = self.embed.weight
        angles = torch.arange(256)[:, None] * 10000.0 ** (-torch.arange(0, features // heads, 2) / (features // heads))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens, targets):
        x = self.embed(tokens) * 20.0
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = self.head(self.norm(x)) * 0.1
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


batch, length, words, features, heads, layers = (2, 7, 30, 16, 2, 2) if SMALL else (16, 256, 8192, 512, 8, 4)


def get_inputs():
    return [torch.randint(0, words, (batch, length)), torch.randint(0, words, (batch, length))]


def get_init_inputs():
    return [words, features, heads, layers]
