# model: saturated.py
# row: model whose output hardly depends on its input
# caught by: depends on inputs and parameters
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.full((features,), 0.5))

    def forward(self, x):
        return torch.ones_like(x[..., 0]) + 0 * self.weight.sum()
