import torch
import torch.nn as nn


class Model(nn.Module):
    """A product with a learned matrix, and tanh."""

    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features) * features**-0.5)

    def forward(self, x):
        return torch.tanh(x @ self.weight.t())


def get_inputs():
    return [torch.randn(8, 24)]


def get_init_inputs():
    return [24, 20]
