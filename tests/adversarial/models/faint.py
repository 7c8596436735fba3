import torch
import torch.nn as nn


class Model(nn.Module):
    """Its output is about 1e-6: below many a fixed tolerance."""

    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return 1e-6 * torch.tanh(self.linear(x))


def get_inputs():
    return [torch.rand(16, 32)]


def get_init_inputs():
    return [32]
