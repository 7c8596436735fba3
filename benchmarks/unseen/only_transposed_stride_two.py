import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A transposed convolution of stride 2 and nothing else."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(channels, channels, kernel, stride=2, padding=1, bias=False)

    def forward(self, x):
        return self.deconv(x)


batch, channels, kernel, h, w = (2, 4, 3, 7, 6) if SMALL else (96, 64, 3, 96, 80)


def get_inputs():
    return [torch.randn(batch, channels, h, w)]


def get_init_inputs():
    return [channels, kernel]
