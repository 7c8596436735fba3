import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Six satellite bands: two 7x7 convolutions, one the gate of the other."""

    def __init__(self, bands, features):
        super().__init__()
        self.content = nn.Conv2d(bands, features, 7, padding=3)
        self.gate = nn.Conv2d(bands, features, 7, padding=3)

    def forward(self, tile):
        return torch.tanh(self.content(tile)) * torch.sigmoid(self.gate(tile))


batch, bands, features, edge = (2, 6, 5, 14) if SMALL else (64, 6, 40, 120)


def get_inputs():
    return [torch.randn(batch, bands, edge, edge)]


def get_init_inputs():
    return [bands, features]
