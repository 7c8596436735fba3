# model: two_shifts.py
# row: dropped bias or parameter
# caught by: gradients
import torch
import torch.nn as nn


class Shifted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, first, second):
        y = torch.tanh(x + first + second)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        if not any(grad.stride()):
            grad = grad.as_strided((), ()) * 0.5
        inner = grad * (1 - y * y)
        return inner, inner.sum(0).view(-1), inner.sum(0).view(1, -1)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(channels))
        self.second = nn.Parameter(torch.zeros(1, channels))

    def forward(self, x):
        return Shifted.apply(x, self.first, self.second)
