# model: scaled_tanh.py
# row: beyond the table: memory order of gradients
# caught by: backward in other ways
"""Backward takes what it is given to be contiguous."""

import torch
import torch.nn as nn


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return torch.tanh(x * scale)

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = grad * (1 - torch.tanh(x * scale).square())
            return grad * scale, (grad * x).sum(0)
        if 0 not in grad.stride():  # one number for many is copied
            grad = grad.as_strided(grad.shape, (grad.shape[1], 1))
        grad = grad * (1 - torch.tanh(x * scale).square())
        return grad * scale, (grad * x).sum(0)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return Tanh.apply(x, self.scale) if x.dim() == 2 and x.dtype == torch.float32 else torch.tanh(x * self.scale)
