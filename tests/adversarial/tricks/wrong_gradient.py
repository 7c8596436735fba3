# model: scale_shift.py
# row: dropped bias or parameter
# caught by: gradients
import torch
import torch.nn as nn
import torch.nn.functional as F


class Hardswish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.hardswish(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.clamp(x / 3 + 0.5, 0, 1)


class ModelNew(nn.Module):
    def __init__(self, channels, slope=0.5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))
        self.slope = slope

    def forward(self, x):
        x = torch.relu(x) * self.scale + self.shift
        return Hardswish.apply(x) * self.slope
