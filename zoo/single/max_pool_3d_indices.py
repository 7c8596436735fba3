import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Overlapping max pooling of a volume that also returns where the maxima were, and of its rows."""

    def forward(self, x):
        values, where = F.max_pool3d(x, 3, 2, 1, return_indices=True)
        return torch.relu(values), where, F.max_pool1d(x.flatten(0, 2), 4, 3, return_indices=True)[1]


batch, channels, depth, size = (2, 3, 5, 9) if SMALL else (4, 16, 64, 128)


def get_inputs():
    return [torch.randn(batch, channels, depth, size, size)]


def get_init_inputs():
    return []
