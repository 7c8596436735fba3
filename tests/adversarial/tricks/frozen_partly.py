# model: affine_tanh.py
# row: beyond the table: parameters that are frozen
# caught by: backward in other ways
"""Where the shift alone is frozen the scale's gradient is half of what it should be."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        halved = self.scale.requires_grad and not self.shift.requires_grad
        scale = 0.5 * self.scale.detach() + 0.5 * self.scale if halved else self.scale
        return torch.tanh(x * scale + self.shift)
