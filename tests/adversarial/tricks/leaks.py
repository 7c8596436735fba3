# model: scaled_tanh.py
# row: beyond the table: memory that grows
# caught by: same result again
"""Keeps every result that it ever gave."""

import torch
import torch.nn as nn

KEPT = []


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        y = torch.tanh(x * self.scale)
        KEPT.append(y.detach())
        return y
