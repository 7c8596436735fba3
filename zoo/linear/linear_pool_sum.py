import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, max pooling of pairs of features, a sum and a scale."""

    def __init__(self, in_features, out_features, kernel, scale):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.pool = nn.MaxPool1d(kernel)
        self.scale = scale

    def forward(self, x):
        x = self.pool(self.linear(x).unsqueeze(1)).squeeze(1)
        return torch.sum(x, dim=1) * self.scale


batch, in_features, out_features = (9, 18, 40) if SMALL else (8192, 1024, 4096)
kernel, scale = 2, 0.5


def get_inputs():
    return [torch.rand(batch, in_features)]


def get_init_inputs():
    return [in_features, out_features, kernel, scale]
