"""Written by zoo/generate.py, seed 7."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """conv1d: clamp, elu, amin over 1, scale, logsumexp over 2, scale."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Conv1d(in_channels, out_channels, 3, padding=1)

    def forward(self, x):
        x = self.anchor(x)
        x = torch.clamp(x, min=-0.95)
        x = F.elu(x, alpha=0.5)
        x = torch.amin(x, dim=(1,), keepdim=True)
        x = x * 0.45
        x = torch.logsumexp(x, dim=(2,), keepdim=True)
        x = x * 2.38
        return x


batch, in_channels, out_channels, width = (2, 6, 8, 24) if SMALL else (64, 128, 256, 2048)


def get_inputs():
    return [torch.randn(batch, in_channels, width)]


def get_init_inputs():
    return [in_channels, out_channels]
