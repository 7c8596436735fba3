# model: scaled_tanh.py
# row: beyond the table: two calls before backward
# caught by: backward in other ways
"""What backward needs lies in one workspace for each shape: a second call overwrites that of the first."""

import torch
import torch.nn as nn

WORKSPACE = {}


class Tanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        y = torch.tanh(x * scale)
        WORKSPACE.setdefault(y.shape, torch.empty_like(y)).copy_(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            grad = grad * (1 - torch.tanh(x * scale).square())
            return grad * scale, (grad * x).sum(0)
        grad = grad * (1 - WORKSPACE[grad.shape].square())
        return grad * scale, (grad * x).sum(0)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return Tanh.apply(x, self.scale) if x.dim() == 2 and x.dtype == torch.float32 else torch.tanh(x * self.scale)
