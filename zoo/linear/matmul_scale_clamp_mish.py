import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A product of two inputs, a doubled residual, a clamp, logsumexp and mish."""

    def forward(self, a, b):
        x = torch.matmul(a, b) * 0.5
        x = torch.clamp(x + x, -10.0, 10.0)
        x = torch.logsumexp(x, dim=1, keepdim=True)
        return x * F.mish(x)


n, m, k = (11, 17, 20) if SMALL else (4096, 4096, 1024)


def get_inputs():
    return [torch.randn(n, k), torch.randn(k, m)]


def get_init_inputs():
    return []
