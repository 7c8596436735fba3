# model: linear_softmax.py
"""Softmax with a running maximum and sum, tile by tile."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        y = self.linear(x)
        largest, total = torch.full_like(y[..., :1], -float("inf")), torch.zeros_like(y[..., :1])
        for tile in y.split(8, dim=-1):
            larger = torch.maximum(largest, tile.amax(-1, keepdim=True))
            total = total * torch.exp(largest - larger) + torch.exp(tile - larger).sum(-1, keepdim=True)
            largest = larger
        return torch.exp(y - largest) / total
