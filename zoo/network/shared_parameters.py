import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """One layer used three times, two names for one parameter, and a list of results."""

    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, features)
        self.same = self.layer
        self.norm = nn.LayerNorm(features)
        self.scale = self.norm.weight

    def forward(self, x):
        found = []
        for _ in range(2):
            x = torch.tanh(self.norm(self.layer(x))) * self.scale
            found.append(x)
        return [*found, torch.relu(self.same(x))]


batch, features = (7, 18) if SMALL else (16384, 1024)


def get_inputs():
    return [torch.randn(batch, features)]


def get_init_inputs():
    return [features]
