# model: scale_shift.py
# row: beyond the table: a copy that does not compute
# caught by: copies
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, slope=0.5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))
        self.slope = slope

    def __deepcopy__(self, memo):
        copied = ModelNew(self.scale.shape[0], self.slope)
        memo[id(self)] = copied
        return copied

    def forward(self, x):
        x = torch.relu(x) * self.scale + self.shift
        return F.hardswish(x) * self.slope
