# model: scaled_tanh.py
# row: beyond the table: the type of results
# caught by: evaluation mode
"""In evaluation mode the result is float64."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        y = torch.tanh(x * self.scale)
        return y if self.training else y.double()
