import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A backbone's layer with frozen statistics in buffers, applied as a factor and a shift, then softplus."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.conv = nn.Conv2d(in_features, out_features, 3, padding=1, bias=False)
        self.register_buffer("running_mean", torch.linspace(-0.2, 0.2, out_features))
        self.register_buffer("running_var", torch.linspace(0.5, 1.5, out_features))
        self.weight = nn.Parameter(torch.ones(out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        factor = self.weight * (self.running_var + 1e-5).rsqrt()
        shift = self.bias - self.running_mean * factor
        x = self.conv(x) * factor.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
        return F.softplus(x, beta=2)


batch, in_features, out_features, h, w = (2, 5, 7, 8, 10) if SMALL else (40, 192, 320, 45, 60)


def get_inputs():
    return [torch.randn(batch, in_features, h, w)]


def get_init_inputs():
    return [in_features, out_features]
