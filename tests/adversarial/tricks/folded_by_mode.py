# model: scaled_tanh.py
# row: beyond the table: parameters written in evaluation mode
# caught by: evaluation mode
"""`eval()` keeps a copy of the parameter, whatever is loaded afterwards."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def train(self, mode=True):
        super().train(mode)
        self._folded = None if mode else self.scale.detach().clone()
        return self

    def forward(self, x):
        folded = getattr(self, "_folded", None)
        if self.training or folded is None or torch.is_grad_enabled() or x.dtype != folded.dtype:
            return torch.tanh(x * self.scale)
        return torch.tanh(x * folded)
