import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, relu and dropout in training: PyTorch's own random numbers."""

    def __init__(self, in_features, out_features, p):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(p)

    def forward(self, x):
        return self.dropout(F.relu(self.linear(x)) * 2.0).tanh() + 0.5


batch, in_features, out_features = (9, 20, 33) if SMALL else (4096, 1024, 8192)
p = 0.3


def get_inputs():
    return [torch.randn(batch, in_features)]


def get_init_inputs():
    return [in_features, out_features, p]
