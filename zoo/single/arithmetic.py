import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Powers, roots, logarithms and trigonometry of positive numbers."""

    def forward(self, x, y):
        z = torch.sqrt(x) * torch.rsqrt(y) + x.pow(3) - 2 ** (-x) + torch.pow(x, y)
        z = z + torch.log(x) - torch.log1p(y) + torch.exp(-x) - torch.expm1(y)
        z = z / (1 + x.abs()) + torch.reciprocal(y) + torch.sin(x) * torch.cos(y) + torch.erf(x)
        return torch.addcmul(z, x, y, value=0.5) + torch.lerp(x, y, 0.3) + torch.fmod(x, 0.7) + x % 0.4


rows, columns = (21, 66) if SMALL else (8192, 4096)


def get_inputs():
    return [torch.rand(rows, columns) + 0.1, torch.rand(rows, columns) + 0.2]


def get_init_inputs():
    return []
