import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed convolution of stride 2 with output padding, a softmax over channels with a learned temperature."""

    def __init__(self, channels, classes, temperature):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, classes, 3, stride=2, padding=1, output_padding=1)
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, x):
        return F.softmax(self.up(x) / self.temperature, dim=1)


batch, channels, classes, h, w = (2, 5, 6, 6, 7) if SMALL else (100, 48, 40, 64, 80)


def get_inputs():
    return [torch.randn(batch, channels, h, w)]


def get_init_inputs():
    return [channels, classes, 1.7]
