# model: conv_norm.py
# right as built, but does not follow: attributes set later, hooks
"""The convolution in channels-last memory."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        y = F.conv2d(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x, self.conv.weight, self.conv.bias)
        return torch.logsumexp(y + torch.tanh(self.norm(y)), dim=1)
