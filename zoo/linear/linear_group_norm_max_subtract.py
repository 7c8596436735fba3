import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, group norm, the maximum over features subtracted, gelu, and leaky relu of the double."""

    def __init__(self, n_in, n_out, groups):
        super().__init__()
        self.gemm = nn.Linear(n_in, n_out)
        self.norm = nn.GroupNorm(groups, n_out)

    def forward(self, x):
        x = self.norm(self.gemm(x))
        x = x - torch.max(x, dim=1, keepdim=True).values
        return F.leaky_relu(F.gelu(x) * 2, negative_slope=0.01)


batch, n_in, n_out, groups = (5, 12, 24, 4) if SMALL else (3000, 1500, 2304, 16)


def get_inputs():
    return [torch.randn(batch, n_in)]


def get_init_inputs():
    return [n_in, n_out, groups]
