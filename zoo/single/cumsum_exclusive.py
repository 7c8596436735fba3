import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Running sums that leave out the element itself."""

    def forward(self, x):
        shifted = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
        return torch.cumsum(shifted, dim=1)


rows, columns = (12, 90) if SMALL else (8192, 8192)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
