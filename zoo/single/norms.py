import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """L1, L2, L3 and maximum norms along a dimension."""

    def forward(self, x):
        one = torch.linalg.vector_norm(x, 1, dim=1)
        two = torch.linalg.vector_norm(x, 2, dim=1)
        three = torch.linalg.vector_norm(x, 3, dim=1)
        return one + two + three + torch.linalg.vector_norm(x, float("inf"), dim=1)


batch, length, features = (4, 22, 30) if SMALL else (32, 1024, 2048)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return []
