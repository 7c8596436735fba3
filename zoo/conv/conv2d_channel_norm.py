import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution whose channels are divided by their spread at each place, as in early image networks, then shifted and scaled."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.scale = nn.Parameter(torch.ones(cout, 1, 1))
        self.shift = nn.Parameter(torch.zeros(cout, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        return self.scale * y / torch.sqrt(y.var(1, keepdim=True, unbiased=False) + 1e-6) + self.shift


batch, cin, cout, size = (2, 5, 12, 11) if SMALL else (32, 32, 64, 127)


def get_inputs():
    return [torch.randn(batch, cin, size, size)]


def get_init_inputs():
    return [cin, cout]
