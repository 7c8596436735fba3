import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Upsampling without overlap (2x2, stride 2) with an encoder's features added, gelu."""

    def __init__(self, deep, shallow):
        super().__init__()
        self.up = nn.ConvTranspose2d(deep, shallow, 2, stride=2)

    def forward(self, x, skip):
        return F.gelu(self.up(x) + skip)


batch, deep, shallow, size = (2, 8, 4, 5) if SMALL else (80, 256, 128, 40)


def get_inputs():
    return [torch.randn(batch, deep, size, size), torch.randn(batch, shallow, 2 * size, 2 * size)]


def get_init_inputs():
    return [deep, shallow]
