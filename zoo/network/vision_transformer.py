import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Layer(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(features)
        self.attention = nn.MultiheadAttention(features, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(features)
        self.mlp = nn.Sequential(nn.Linear(features, 4 * features), nn.GELU("tanh"), nn.Linear(4 * features, features))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """A vision transformer: patches, a class token, learned positions, torch's own encoder layers."""

    def __init__(self, size, patch, features, heads, layers, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, features, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, features))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, features))
        self.layers = nn.ModuleList(Layer(features, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(features)
        self.head = nn.Linear(features, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


batch, size, patch, classes = (2, 16, 4, 5) if SMALL else (32, 224, 16, 1000)
features, heads, layers = (16, 2, 2) if SMALL else (384, 6, 4)


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [size, patch, features, heads, layers, classes]
