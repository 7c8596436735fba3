import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Along the middle of three dimensions: a gated running mean, and what is still to come."""

    def __init__(self, channels):
        super().__init__()
        self.gate = nn.Parameter(torch.linspace(-1, 1, channels))

    def forward(self, x):
        gate = torch.sigmoid(x + self.gate)
        seen = torch.cumsum(x * gate, dim=1) / torch.cumsum(gate, dim=1)
        return seen, torch.cumsum(x.flip(1), dim=1).flip(1) - x


batch, steps, channels = (3, 37, 20) if SMALL else (64, 1024, 512)


def get_inputs():
    return [torch.randn(batch, steps, channels)]


def get_init_inputs():
    return [channels]
