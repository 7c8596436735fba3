import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Clamps with one bound, with the other, with both, and with tensors as bounds."""

    def forward(self, x, low, high):
        both = torch.clamp(x, -0.4, 0.6)
        below = torch.clamp(x, min=0.1)
        above = torch.clamp(x, max=0.3)
        return both + below * above + torch.clamp(x, low, high), torch.minimum(x, high), torch.maximum(x, low)


rows, columns = (25, 50) if SMALL else (8192, 4096)


def get_inputs():
    return [torch.randn(rows, columns), -torch.rand(columns), torch.rand(rows, 1)]


def get_init_inputs():
    return []
