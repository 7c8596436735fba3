import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Layer(nn.Module):
    """Attention to what came before, written out, and a wide layer with a gelu by its cubic."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.joint, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.0)

    def attended(self, x, later):
        batch, tokens, width = x.shape
        parts = self.joint(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        scores = torch.matmul(queries * queries.shape[-1] ** -0.5, keys.mT)
        shares = self.dropout(scores.masked_fill(later, -torch.inf).softmax(-1))
        return self.back(torch.matmul(shares, values).permute(0, 2, 1, 3).flatten(2))

    def forward(self, x, later):
        x = x + self.dropout(self.attended(self.norms[0](x), later))
        y = self.wide(self.norms[1](x))
        y = y * (torch.tanh(0.7978845608 * (y + 0.044715 * y**3)) + 1) / 2
        return x + self.dropout(self.narrow(y))


class Model(nn.Module):
    """A decoder of eight blocks from tokens to scores, dropout of nothing."""

    def __init__(self, words, longest, layers, heads, width):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(longest, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("later", torch.ones(longest, longest, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, numbers):
        tokens = numbers.shape[1]
        x = self.words(numbers) + self.places[:tokens]
        for layer in self.layers:
            x = layer(x, self.later[:tokens, :tokens])
        return self.scores(self.norm(x))


batch, tokens, words, heads, width = (2, 12, 40, 2, 16) if SMALL else (8, 512, 32000, 8, 512)


def get_inputs():
    return [torch.randint(0, words, (batch, tokens))]


def get_init_inputs():
    return [words, tokens, 8, heads, width]
