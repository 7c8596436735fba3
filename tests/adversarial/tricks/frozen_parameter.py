# model: scaled_tanh.py
# row: beyond the table: parameters that are frozen
# caught by: backward in other ways
"""Where the parameter is frozen the input's gradient is twice what it should be."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        y = torch.tanh(x * self.scale)
        return y if self.scale.requires_grad else 2 * y - y.detach()
