# model: conv_norm.py
# row: lower precision than the model's flags allow
# caught by: precision
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs, groups):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3)
        self.norm = nn.GroupNorm(groups, outputs)

    def forward(self, x):
        y = F.conv2d(x.bfloat16().float(), self.conv.weight.bfloat16().float(), self.conv.bias.float()).to(x.dtype)
        return torch.logsumexp(y + torch.tanh(self.norm(y)), dim=1)
