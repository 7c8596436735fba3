import torch
import torch.nn as nn


class Model(nn.Module):
    """What a mask lets through, added up from the end of each row."""

    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x, mask):
        return torch.cumsum((x * self.weight * mask).flip(1), dim=1).flip(1) - x


def get_inputs():
    return [torch.randn(12, 2048), torch.rand(12, 2048) > 0.5]


def get_init_inputs():
    return [2048]
