import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Results that are inputs, views of inputs, views of each other, nothing, and one that is returned twice."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.randn(features, 3))
        self.shift = nn.Parameter(torch.randn(1))

    def forward(self, x, y, flag=None):
        z = torch.tanh(x * self.scale + self.shift)
        assert flag is None, f"no flag is known: {flag}"
        return z, z, z[:, 1:], x, x.transpose(0, 1), (y, None, z.view(-1, 2, z.shape[1] // 2)), z.mT + y, self.scale


rows, columns = (6, 10) if SMALL else (8192, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(columns, rows), None]


def get_init_inputs():
    return [columns]
