import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """The largest values along one dimension, with their positions."""

    def forward(self, x):
        values, positions = torch.max(x, dim=1)
        return values, positions


batch, length, features = (4, 31, 18) if SMALL else (16, 4096, 1024)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return []
