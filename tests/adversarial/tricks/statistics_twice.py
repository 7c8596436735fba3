# model: batch_norm.py
# row: beyond the table: buffers changed by backward
# caught by: gradients
"""Backward calls the module again, and its running statistics move twice."""

import torch
import torch.nn as nn


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, norm, x, *parameters):
        ctx.norm = norm
        ctx.save_for_backward(x)
        return torch.tanh(norm(x))

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            values = x if torch.is_grad_enabled() and x.requires_grad else x.detach().requires_grad_()
            y = torch.tanh(ctx.norm(values))
            return None, *torch.autograd.grad(y, (values, ctx.norm.weight, ctx.norm.bias), grad, create_graph=True)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        if not torch.is_grad_enabled() or not self.norm.weight.requires_grad or self.norm._forward_hooks:
            return torch.tanh(self.norm(x))
        return Again.apply(self.norm, x, self.norm.weight, self.norm.bias)
