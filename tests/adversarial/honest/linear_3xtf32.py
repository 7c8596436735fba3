# model: linear_softmax.py
# right as built, but does not follow: hooks
"""Three TF32 products instead of one in fp32."""

import torch
import torch.nn as nn


def tf32(x):
    """Round to nearest, ties away, as cvt.rna does; gradients pass through."""
    bits = x.detach().float().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    rounded = torch.where(torch.isfinite(x), rounded, x)
    return x + (rounded - x).detach()


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        if x.dtype != torch.float32:
            return torch.softmax(self.linear(x), dim=-1)
        w = self.linear.weight
        x_high, w_high = tf32(x), tf32(w)
        x_low, w_low = tf32(x - x_high), tf32(w - w_high)
        y = x_high @ w_high.T + (x_low @ w_high.T + x_high @ w_low.T)
        return torch.softmax(y + self.linear.bias, dim=-1)
