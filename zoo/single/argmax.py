import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Positions of the largest elements along a middle dimension."""

    def forward(self, x):
        return torch.argmax(x, dim=1)


batch, length, features = (4, 31, 18) if SMALL else (16, 4096, 1024)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return []
