# model: own_backward.py
"""The model itself: its backward does not take the gradient of a sum, and a parameter has no elements."""

import torch
import torch.nn as nn


class Doubled(torch.autograd.Function):
    """Its backward writes into what it is given, which one number that stands for many does not allow."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(2)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.nothing = nn.Parameter(torch.ones(0))

    def forward(self, x):
        return Doubled.apply(x * self.scale)
