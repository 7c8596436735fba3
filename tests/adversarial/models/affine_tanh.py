import torch
import torch.nn as nn


class Model(nn.Module):
    """A learned scale and shift, and tanh."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        return torch.tanh(x * self.scale + self.shift)


def get_inputs():
    return [torch.randn(8, 24)]


def get_init_inputs():
    return [24]
