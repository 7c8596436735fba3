import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Channels shuffled and unshuffled into pixels, numbers for what is none, the larger of two tensors, outer products."""

    def __init__(self, channels):
        super().__init__()
        self.floor = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        larger = torch.max(x, self.floor)
        shuffled = F.channel_shuffle(larger, 2) * 2
        logs = torch.nan_to_num(torch.log(x), nan=1.0, neginf=-3.0)
        grid = torch.outer(x[0, 0, 0], x[0, 0, :, 0])
        return shuffled, F.pixel_unshuffle(torch.min(x, -x).tanh(), 2), logs, grid + 1


batch, channels, height, width = (2, 4, 6, 8) if SMALL else (16, 64, 128, 128)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
