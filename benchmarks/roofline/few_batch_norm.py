import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """3×3 of few channels, a batch norm, a scale."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel)
        self.norm = nn.BatchNorm2d(channels_out)

    def forward(self, x):
        return self.norm(self.conv(x)) * 2.0


batch, height, width = (3, 12, 13) if SMALL else (128, 128, 128)


def get_inputs():
    return [torch.rand(batch, 8, height, width)]


def get_init_inputs():
    return [8, 64, 3]
