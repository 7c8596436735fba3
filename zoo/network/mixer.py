import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Layer(nn.Module):
    def __init__(self, tokens, features):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.along = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.across = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features))

    def forward(self, x):
        x = x + self.along(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.across(self.norm2(x))


class Model(nn.Module):
    """An MLP mixer: mixing over the tokens, then over the channels."""

    def __init__(self, tokens, features, layers):
        super().__init__()
        self.layers = nn.ModuleList(Layer(tokens, features) for _ in range(layers))
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x).mean(dim=1)


batch, tokens, features, layers = (2, 12, 10, 2) if SMALL else (64, 196, 512, 4)


def get_inputs():
    return [torch.randn(batch, tokens, features)]


def get_init_inputs():
    return [tokens, features, layers]
