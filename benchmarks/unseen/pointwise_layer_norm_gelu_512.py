import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 1x1 convolution of 512 channels, a layer norm over channels written by hand, gelu."""

    def __init__(self, channels, eps=1e-6):
        super().__init__()
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        x = self.pointwise(x)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return F.gelu(self.weight[:, None, None] * x + self.bias[:, None, None])


batch, channels, size = (2, 12, 6) if SMALL else (48, 512, 28)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels]
