import torch
import torch.nn as nn


class Model(nn.Module):
    """A model in bfloat16."""

    def __init__(self, features, outputs):
        super().__init__()
        self.linear = nn.Linear(features, outputs).bfloat16()
        self.norm = nn.LayerNorm(outputs).bfloat16()

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


def get_inputs():
    return [torch.rand(16, 64).bfloat16()]


def get_init_inputs():
    return [64, 48]
