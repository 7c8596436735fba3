# model: norm.py
"""Gelu with a derivative of its own."""

import torch
import torch.nn as nn


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * torch.erfc(-x * 0.7071067811865476)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        density = torch.exp(-0.5 * x * x) * 0.3989422804014327
        return grad * (0.5 * torch.erfc(-x * 0.7071067811865476) + x * density)


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return Gelu.apply(self.norm(x))
