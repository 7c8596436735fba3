import torch
import torch.nn as nn


class Model(nn.Module):
    """Each row's sum, at each of its elements."""

    def forward(self, x):
        return x.sum(1, keepdim=True) + torch.zeros_like(x)


def get_inputs():
    return [torch.rand(8, 100)]


def get_init_inputs():
    return []
