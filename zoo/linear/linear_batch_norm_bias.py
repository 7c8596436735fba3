import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, batch norm in training, a bias of one number, a division and swish."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.BatchNorm1d(out_features)
        self.bias = nn.Parameter(torch.randn(1))

    def forward(self, x):
        x = (self.norm(self.linear(x)) + self.bias) / 1.5
        return x * torch.sigmoid(x)


batch, in_features, out_features = (12, 20, 28) if SMALL else (4096, 1024, 4096)


def get_inputs():
    return [torch.rand(batch, in_features)]


def get_init_inputs():
    return [in_features, out_features]
