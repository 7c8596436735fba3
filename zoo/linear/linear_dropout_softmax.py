import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, dropout in evaluation and softmax."""

    def __init__(self, in_features, out_features, p):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.dropout = nn.Dropout(p).eval()

    def forward(self, x):
        return torch.softmax(self.dropout(self.linear(x)), dim=1)


batch, in_features, out_features = (9, 20, 33) if SMALL else (4096, 1024, 8192)
p = 0.3


def get_inputs():
    return [torch.rand(batch, in_features)]


def get_init_inputs():
    return [in_features, out_features, p]
