import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution whose weights are standardised in every forward, group norm, silu."""

    def __init__(self, cin, cout, k=3):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cout, cin, k, k))
        nn.init.kaiming_normal_(self.weight)
        self.gain = nn.Parameter(torch.ones(cout, 1, 1, 1))
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x):
        w = self.weight
        mean = w.mean(dim=(1, 2, 3), keepdim=True)
        var = torch.var(w, dim=(1, 2, 3), keepdim=True, unbiased=False)
        w = (w - mean) * torch.rsqrt(var * w[0].numel() + 1e-4) * self.gain
        return F.silu(self.norm(F.conv2d(x, w, None, 1, 1)), inplace=True)


batch, cin, cout, size = (2, 5, 16, 9) if SMALL else (32, 48, 96, 64)


def get_inputs():
    return [torch.randn(batch, cin, size, size)]


def get_init_inputs():
    return [cin, cout]
