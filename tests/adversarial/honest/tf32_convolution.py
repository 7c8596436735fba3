# model: conv_norm.py
# precision: flags
# right as built, but does not follow: attributes set later, hooks
"""Operands of the convolution rounded to TF32, which PyTorch's default flags allow: right by the flags, though the library does not round
these of 8 channels."""

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
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        y = F.conv2d(tf32(x), tf32(self.conv.weight), self.conv.bias)
        return torch.logsumexp(y + torch.tanh(self.norm(y)), dim=1)
