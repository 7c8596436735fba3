import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A grouped and dilated transposed convolution of a signal, batch norm in evaluation, leaky relu, a trimmed end."""

    def __init__(self, cin, cout, groups=4):
        super().__init__()
        self.up = nn.ConvTranspose1d(cin, cout, 6, stride=3, padding=2, dilation=2, groups=groups, bias=False)
        self.norm = nn.BatchNorm1d(cout).eval()
        self.trim = 5

    def forward(self, x):
        y = F.leaky_relu_(self.norm(self.up(x)), 0.2)
        return y[..., : -self.trim].contiguous(), y.amax(-1)


batch, cin, cout, length = (3, 8, 12, 11) if SMALL else (32, 128, 64, 5001)


def get_inputs():
    return [torch.randn(batch, cin, length)]


def get_init_inputs():
    return [cin, cout]
