import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """In-place operators, as people write them."""

    def forward(self, x):
        y = x.clone()
        y.mul_(2.0).add_(1.0)
        y[:, 0] = 0.0
        y[:, -2:] += 3.0
        y.clamp_(min=-1.0)
        return F.relu_(y).sub_(x)


rows, columns = (22, 48) if SMALL else (8192, 8192)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
