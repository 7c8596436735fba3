import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Comparisons, logic and choices; floats, integers and bools come out."""

    def forward(self, x, y):
        larger = x > y
        between = (x >= -1) & (x <= 1) | (y == 0)
        chosen = torch.where(larger, x, y * 0.5)
        count = larger.to(torch.int64) + between.int() * 2
        filled = x.masked_fill(~between, -3.0)
        return chosen, count, filled, torch.logical_xor(larger, between), x.isnan()


rows, columns = (17, 60) if SMALL else (8192, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
