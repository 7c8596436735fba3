import torch
import torch.nn as nn


class Model(nn.Module):
    """A plain number among the inputs, and a tuple of tensors out."""

    def __init__(self, features, eps=1e-3):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features))
        self.eps = eps

    def forward(self, x, power):
        y = (x.abs() + self.eps) ** power * self.scale
        return y, y.amax(dim=1)


def get_inputs():
    return [torch.randn(5, 12), 1.5]


def get_init_inputs():
    return [12]
