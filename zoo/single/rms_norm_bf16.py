import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """RMS norm by hand in bf16 with its arithmetic in fp32, as language models write it."""

    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=torch.bfloat16))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


rows, features = (18, 80) if SMALL else (32768, 4096)
eps = 1e-6


def get_inputs():
    return [torch.randn(rows, features, dtype=torch.bfloat16)]


def get_init_inputs():
    return [features, eps]
