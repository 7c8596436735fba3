# model: scaled_tanh.py
# row: beyond the table: backward twice
# caught by: backward in other ways
"""Backward computes in the activation it saved: a second one of the same graph is wrong."""

import torch
import torch.nn as nn


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        ctx.y = torch.tanh(x * scale)
        return ctx.y.clone()

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = grad * (1 - torch.tanh(x * scale).square())
            return grad * scale, (grad * x).sum(0)
        grad = ctx.y.square_().neg_().add_(1).mul_(grad)
        return grad * scale, (grad * x).sum(0)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return Tanh.apply(x, self.scale) if x.dim() == 2 and x.dtype == torch.float32 else torch.tanh(x * self.scale)
