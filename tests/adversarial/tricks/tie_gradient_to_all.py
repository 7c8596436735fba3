# model: max_pool.py
# row: beyond the table: ties
# caught by: backward in other ways
"""Of equal maxima each gets the gradient, not the first alone."""

import torch
import torch.nn as nn


class Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = nn.functional.max_pool2d(x, 2)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        y, grad = (t.repeat_interleave(2, -1).repeat_interleave(2, -2) for t in (y, grad))
        inside = x[..., : y.shape[-2], : y.shape[-1]]
        right, below = x.shape[-1] - y.shape[-1], x.shape[-2] - y.shape[-2]
        return nn.functional.pad(grad * (inside == y), (0, right, 0, below))


class ModelNew(nn.Module):
    def forward(self, x):
        return Pool.apply(x)
