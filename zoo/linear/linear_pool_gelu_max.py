import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, divided, a pool along its features, GELU, scaled, and the max of each row."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = self.linear(x) / 1.7
        x = F.avg_pool1d(x.unsqueeze(1), 16).squeeze(1)
        x = F.gelu(x) * 2.0
        return torch.max(x, dim=1).values


batch, in_features, out_features = (5, 33, 48) if SMALL else (1024, 8191, 8192)


def get_inputs():
    return [torch.randn(batch, in_features)]


def get_init_inputs():
    return [in_features, out_features]
