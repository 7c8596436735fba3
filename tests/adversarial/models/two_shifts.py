import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(channels))
        self.second = nn.Parameter(torch.zeros(1, channels))

    def forward(self, x):
        return torch.tanh(x + self.first + self.second)


def get_inputs():
    return [torch.randn(64, 48)]


def get_init_inputs():
    return [48]
