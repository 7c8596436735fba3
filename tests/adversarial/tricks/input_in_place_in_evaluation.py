# model: scaled_tanh.py
# row: input modified in place
# caught by: nothing besides
"""Writes into its input, but in evaluation mode alone."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        y = torch.tanh(x * self.scale)
        if not self.training and not torch.is_grad_enabled() and not x.is_inference():
            x.mul_(0.5)
        return y
