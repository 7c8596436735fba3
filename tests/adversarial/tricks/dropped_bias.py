# model: conv_transpose_mean.py
# row: dropped bias or parameter
# caught by: depends on inputs and parameters
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, outputs, 3)

    def forward(self, x):
        y = F.conv_transpose2d(x, self.conv.weight)
        return torch.logsumexp(y.mean((2, 3)), dim=1, keepdim=True) * 10.0
