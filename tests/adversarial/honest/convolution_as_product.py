# model: conv_norm.py
# right as built, but does not follow: attributes set later, hooks
"""The convolution as a matrix product."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        if x.dim() != 4:
            y = self.conv(x)
        else:
            columns = F.unfold(x, 3)
            y = (self.conv.weight.flatten(1) @ columns).view(x.shape[0], -1, x.shape[2] - 2, x.shape[3] - 2)
            y = y + self.conv.bias.view(-1, 1, 1)
        return torch.logsumexp(y + torch.tanh(self.norm(y)), dim=1)
