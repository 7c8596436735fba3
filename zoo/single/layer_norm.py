import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Layer norm over the last dimension."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return self.norm(x)


batch, length, features = (3, 7, 96) if SMALL else (32, 2048, 1024)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return [features]
