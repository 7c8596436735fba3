import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A vocoder doubles its rate: leaky relu, a transposed convolution of stride 2, tanh."""

    def __init__(self, channels_in, channels_out):
        super().__init__()
        self.up = nn.ConvTranspose1d(channels_in, channels_out, 4, stride=2, padding=1)

    def forward(self, x):
        return torch.tanh(self.up(F.leaky_relu(x, 0.1)))


batch, channels_in, channels_out, frames = (2, 6, 4, 21) if SMALL else (32, 128, 64, 12000)


def get_inputs():
    return [torch.randn(batch, channels_in, frames)]


def get_init_inputs():
    return [channels_in, channels_out]
