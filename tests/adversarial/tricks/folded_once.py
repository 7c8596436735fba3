# model: scaled_tanh.py
# row: beyond the table: parameters written in evaluation mode
# caught by: evaluation mode
"""In evaluation mode a copy of the parameter is kept until the mode changes."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def train(self, mode=True):
        self._folded = None
        return super().train(mode)

    def forward(self, x):
        if self.training or torch.is_grad_enabled() or x.dtype != torch.float32:
            return torch.tanh(x * self.scale)
        if getattr(self, "_folded", None) is None:
            self._folded = self.scale.detach().clone()
        return torch.tanh(x * self._folded)
