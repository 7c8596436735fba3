import torch
import torch.nn as nn


class Model(nn.Module):
    """The sign of each number, and the number."""

    def forward(self, x):
        return torch.sign(x) * 2 + x


def get_inputs():
    return [torch.randn(8, 100)]


def get_init_inputs():
    return []
