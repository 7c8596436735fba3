# model: conv_norm.py
"""Logsumexp with a running maximum, channel after channel."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        y = self.conv(x)
        z = y + torch.tanh(self.norm(y))
        largest = torch.full_like(z[:, 0], -float("inf"))
        total = torch.zeros_like(largest)
        for channel in z.unbind(1):
            larger = torch.maximum(largest, channel)
            safe = torch.where(torch.isinf(larger), torch.zeros_like(larger), larger)
            total = total * torch.exp(largest - safe) + torch.exp(channel - safe)
            largest = larger
        return torch.log(total) + torch.where(torch.isinf(largest), torch.zeros_like(largest), largest)
