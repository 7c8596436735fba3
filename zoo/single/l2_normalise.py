import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Rows divided by their L2 norm, and the same by torch's own function."""

    def forward(self, x):
        by_hand = x / torch.norm(x, p=2, dim=1, keepdim=True)
        return by_hand + F.normalize(x, dim=0)


rows, columns = (14, 65) if SMALL else (8192, 8192)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
