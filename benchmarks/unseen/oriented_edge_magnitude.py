import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Pairs of learned filters, and the length of each pair: an edge detector in quadrature."""

    def __init__(self, in_channels, orientations, kernel_size, eps):
        super().__init__()
        self.filters = nn.Conv2d(in_channels, 2 * orientations, kernel_size, padding=kernel_size // 2)
        self.eps = eps

    def forward(self, x):
        real, imaginary = self.filters(x).chunk(2, dim=1)
        return torch.sqrt(real * real + imaginary * imaginary + self.eps)


batch, in_channels, orientations, rows, cols = (2, 3, 3, 13, 12) if SMALL else (20, 3, 12, 301, 403)


def get_inputs():
    return [torch.rand(batch, in_channels, rows, cols)]


def get_init_inputs():
    return [in_channels, orientations, 5, 1e-6]
