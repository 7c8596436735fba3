import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, levels):
        return torch.round(x * levels) / levels

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Model(nn.Module):
    """Quantised training: weights and activations rounded by a function with a gradient of its own (straight through)."""

    def __init__(self, features, hidden, bits):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, features)
        self.levels = 2**bits - 1

    def forward(self, x):
        w = self.first.weight.clamp(-1, 1)
        y = Round.apply(torch.sigmoid(F.linear(x, Round.apply(w, self.levels), self.first.bias)), self.levels)
        return self.second(y) + x


rows, features, hidden, bits = (6, 8, 10, 4) if SMALL else (8192, 512, 1024, 8)


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features, hidden, bits]
