# model: scale_shift.py
# row: dropped bias or parameter
# caught by: state_dict
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, slope=0.5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.slope = slope

    def forward(self, x):
        return F.hardswish(torch.relu(x) * self.scale) * self.slope
