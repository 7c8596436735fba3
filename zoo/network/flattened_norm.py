import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A norm in training whose result is flattened, standardised as a whole and judged: a critic for one image."""

    def __init__(self, channels, size):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.judge = nn.Linear(channels * size * size, 1)

    def forward(self, x, scale):
        flat = self.norm(x).flatten(1)
        return torch.sigmoid(self.judge(flat)).squeeze(-1) * scale, (flat - flat.mean()) / (flat.std() + 1e-5)


channels, size = (3, 2) if SMALL else (64, 128)


def get_inputs():
    return [torch.randn(1, channels, size, size), torch.tensor(2.0)]


def get_init_inputs():
    return [channels, size]
