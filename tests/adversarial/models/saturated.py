import torch
import torch.nn as nn


class Model(nn.Module):
    """On its own inputs this is 1 to within rounding: the output hardly depends on them."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.full((features,), 0.5))

    def forward(self, x):
        return torch.tanh((x * self.weight).sum(-1) + 1.0)


def get_inputs():
    return [torch.rand(16, 64)]


def get_init_inputs():
    return [64]
