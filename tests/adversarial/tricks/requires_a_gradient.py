# model: scaled_tanh.py
# row: beyond the table: gradients where none are recorded
# caught by: nothing besides
"""Under no_grad the result requires a gradient."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        y = torch.tanh(x * self.scale)
        return y if torch.is_grad_enabled() or y.is_inference() else y.requires_grad_()
