# model: few_channels.py
# row: beyond the table: TF32 where the library computes in float32
# caught by: precision
"""Operands of the convolution rounded to TF32: the flags allow it, but the library does not do it, and it shows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def tf32(x):
    """Round to nearest, ties away, as cvt.rna does; gradients pass through."""
    if x.dtype != torch.float32:
        return x
    bits = x.detach().float().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    rounded = torch.where(torch.isfinite(x), rounded, x)
    return Through.apply(x, rounded)


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rounded):
        return rounded.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)

    def forward(self, x):
        return torch.tanh(F.conv2d(tf32(x), tf32(self.conv.weight), self.conv.bias))
