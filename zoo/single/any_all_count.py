import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Reductions of bools and integers."""

    def forward(self, x, labels):
        positive = x > 0
        return positive.any(dim=1), (x > -4).all(dim=0), positive.sum(dim=1), labels.sum(), labels.float().mean(0)


rows, columns = (20, 45) if SMALL else (8192, 8192)


def get_inputs():
    return [torch.randn(rows, columns), torch.randint(0, 9, (rows, columns))]


def get_init_inputs():
    return []
