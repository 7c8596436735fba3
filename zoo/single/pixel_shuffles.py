import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Channels put between pixels after an activation, pixels into channels, channels in turn."""

    def __init__(self, factor):
        super().__init__()
        self.up = nn.PixelShuffle(factor)
        self.down = nn.PixelUnshuffle(factor)
        self.mix = nn.ChannelShuffle(3)

    def forward(self, x):
        return self.up(F.leaky_relu(x, 0.1)), self.down(x) * 2, self.mix(x).clamp_(-1, 1)


shape = (2, 36, 4, 6) if SMALL else (16, 36, 180, 198)


def get_inputs():
    return [torch.randn(*shape)]


def get_init_inputs():
    return [2]
