import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, swish, a bias and group norm of rows."""

    def __init__(self, in_features, out_features, groups):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.bias = nn.Parameter(torch.randn(out_features))
        self.norm = nn.GroupNorm(groups, out_features)

    def forward(self, x):
        x = self.linear(x)
        return self.norm(torch.sigmoid(x) * x + self.bias)


batch, in_features, out_features = (9, 20, 32) if SMALL else (8192, 1024, 4096)
groups = 8


def get_inputs():
    return [torch.rand(batch, in_features)]


def get_init_inputs():
    return [in_features, out_features, groups]
