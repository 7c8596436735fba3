import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A two-layer GRU, layer norm of its states, and a head on the last one."""

    def __init__(self, features, hidden, layers, classes):
        super().__init__()
        self.gru = nn.GRU(features, hidden, layers, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x, state):
        y, state = self.gru(x, state)
        y = torch.tanh(self.norm(y))
        return self.head(y[:, -1]), state


batch, length, features, hidden, layers, classes = (2, 6, 8, 10, 2, 5) if SMALL else (64, 256, 256, 512, 2, 100)


def get_inputs():
    return [torch.randn(batch, length, features), torch.randn(layers, batch, hidden)]


def get_init_inputs():
    return [features, hidden, layers, classes]
