import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A sum over the middle dimension."""

    def forward(self, x):
        return torch.sum(x, dim=1, keepdim=True)


batch, length, features = (3, 40, 27) if SMALL else (32, 4096, 1024)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return []
