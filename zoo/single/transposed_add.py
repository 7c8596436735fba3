import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A tensor and its transpose: reads along both directions."""

    def forward(self, x):
        return x + 2 * x.transpose(1, 2)


batch, n = (3, 37) if SMALL else (16, 2048)


def get_inputs():
    return [torch.randn(batch, n, n)]


def get_init_inputs():
    return []
