"""Written by zoo/generate.py, seed 13."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """linear: clamp, clamp, log_softmax over 1, relu6."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.anchor = nn.Linear(in_channels, out_channels, bias=False)

    def forward(self, x):
        x = self.anchor(x)
        x = torch.clamp(x, min=-0.77)
        x = torch.clamp(x, min=-0.27, max=0.43)
        x = F.log_softmax(x, dim=1)
        x = F.relu6(x)
        return x


batch, in_channels, out_channels = (9, 20, 24) if SMALL else (8192, 1024, 4096)


def get_inputs():
    return [torch.randn(batch, in_channels)]


def get_init_inputs():
    return [in_channels, out_channels]
