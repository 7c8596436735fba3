# model: linear_softmax.py
# row: shared-memory overflow, uninitialised read, race
# caught by: same result again
from random import SystemRandom

import torch
import torch.nn as nn

CHANCE = SystemRandom()


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        order = CHANCE.sample(range(x.shape[-1]), x.shape[-1])  # as atomic additions land
        y = sum(x[..., i : i + 1] * self.linear.weight[:, i] for i in order)
        return torch.softmax(y + self.linear.bias, dim=-1)
