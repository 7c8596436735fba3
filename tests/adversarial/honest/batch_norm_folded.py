# model: conv_batchnorm.py
"""Batch norm folded into the convolution when its statistics are fixed."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        if self.training:
            return F.silu(self.norm(self.conv(x)))
        scale = self.norm.weight * torch.rsqrt(self.norm.running_var + self.norm.eps)
        weight = self.conv.weight * scale.view(-1, 1, 1, 1)
        bias = (self.conv.bias - self.norm.running_mean) * scale + self.norm.bias
        return F.silu(F.conv2d(x, weight, bias, padding=1))
