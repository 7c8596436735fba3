# model: matrix.py
# row: beyond the table: memory order of parameters
# caught by: attributes set later
"""Takes its parameter to be contiguous in memory."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features) * features**-0.5)

    def forward(self, x):
        weight = self.weight.as_strided(self.weight.shape, (self.weight.shape[1], 1))
        return torch.tanh(x @ weight.t())
