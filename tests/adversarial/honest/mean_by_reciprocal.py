# model: conv_transpose_mean.py
"""A mean as a sum times the reciprocal of its length."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, outputs, 3)

    def forward(self, x):
        y = self.conv(x)
        mean = y.flatten(2).sum(2) * (1.0 / (y.shape[2] * y.shape[3]))
        return torch.logsumexp(mean, dim=1, keepdim=True) * 10.0
