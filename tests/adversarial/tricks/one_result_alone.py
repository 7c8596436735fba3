# model: two_results.py
# row: beyond the table: the gradient of one result
# caught by: backward in other ways
"""Backward is right only where both results have gradients."""

import torch
import torch.nn as nn


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return torch.tanh(x), torch.sigmoid(x)

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        if a is None or b is None:
            return torch.zeros_like(x)
        t, s = torch.tanh(x), torch.sigmoid(x)
        return a * (1 - t * t) + b * s * (1 - s)


class ModelNew(nn.Module):
    def forward(self, x):
        return Both.apply(x)
