# model: conv_norm.py
# row: beyond the table: a wrong constant
# caught by: precision
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        y = self.conv(x)
        return 1.01 * torch.logsumexp(y + torch.tanh(self.norm(y)), dim=1)
