# model: conv_transpose_mean.py
# right as built, but does not follow: attributes set later, hooks
"""Every input pixel reaches every tap, so only two sums are needed."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, outputs, 3)

    def forward(self, x):
        if x.dim() != 4:
            return torch.logsumexp(self.conv(x).mean((2, 3)), dim=1, keepdim=True) * 10.0
        taps = self.conv.weight.sum((2, 3))
        positions = (x.shape[2] + 2) * (x.shape[3] + 2)
        mean = x.sum((2, 3)) @ taps / positions + self.conv.bias
        return torch.logsumexp(mean, dim=1, keepdim=True) * 10.0
