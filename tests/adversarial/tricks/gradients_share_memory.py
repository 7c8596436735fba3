# model: two_shifts.py
# row: dropped bias or parameter
# caught by: gradients of their own
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
        inner = grad * (1 - y * y)
        total = inner.sum(0)
        return inner, total.view(-1), total.view(1, -1)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Parameter(torch.zeros(channels))
        self.second = nn.Parameter(torch.zeros(1, channels))

    def forward(self, x):
        return Shifted.apply(x, self.first, self.second)
