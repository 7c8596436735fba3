import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Softmin with a learned temperature for each row."""

    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.7))

    def forward(self, x, offset):
        return F.softmin(x / self.temperature.abs() + offset, dim=1)


rows, columns = (12, 100) if SMALL else (16384, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, 1)]


def get_init_inputs():
    return []
