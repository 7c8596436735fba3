# model: scale_shift.py
# row: changed hyper-parameters or inputs
# caught by: seeds
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, slope=0.5):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1))

    def forward(self, x):
        x = torch.relu(x) * self.scale + self.shift
        return F.hardswish(x) * 0.5


def get_inputs():
    return [torch.zeros(4, 6, 50)]


def get_init_inputs():
    return [6, 0.5]
