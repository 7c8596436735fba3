# model: conv_batchnorm.py
# right as built, but does not follow: attributes set later, hooks
"""Batch norm and silu as statistics and one formula."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        norm, y = self.norm, self.conv(x)
        if not self.training or y.dim() != 4 or y.numel() == 0:
            return F.silu(norm(y))
        variance, mean = torch.var_mean(y, (0, 2, 3), correction=0)
        with torch.no_grad():
            count = y.numel() // y.shape[1]
            norm.running_mean += norm.momentum * (mean - norm.running_mean)
            norm.running_var += norm.momentum * (variance * (count / (count - 1)) - norm.running_var)
            norm.num_batches_tracked += 1
        scale = norm.weight * torch.rsqrt(variance + norm.eps)
        z = (y - mean.view(-1, 1, 1)) * scale.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
        return z / (1 + torch.exp(-z))
