# model: conv_pool.py
"""A monotone function moved behind the max pool."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, x):
        return torch.sigmoid(F.max_pool2d(self.conv(x), 2))
