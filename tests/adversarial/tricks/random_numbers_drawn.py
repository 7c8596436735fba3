# model: scaled_tanh.py
# row: beyond the table: random numbers
# caught by: nothing besides
"""Draws a random number that nobody needs: what is drawn next is another one."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return torch.tanh(x * self.scale) + 0 * torch.rand((), device=x.device, dtype=x.dtype)
