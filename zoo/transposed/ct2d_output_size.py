import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A transposed convolution that is told its output's size, a norm without running statistics, a gate by a skip."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, hidden, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(hidden, track_running_stats=False, eps=1e-3)

    def forward(self, x, skip):
        y = self.norm(self.up(x, output_size=skip.shape[-2:]))
        return torch.sigmoid(skip) * F.elu(y, alpha=1.5) + (1 - torch.sigmoid(skip)) * y


batch, channels, hidden, height, width = (2, 6, 5, 7, 8) if SMALL else (16, 128, 64, 64, 64)


def get_inputs():
    return [torch.randn(batch, channels, height, width), torch.randn(batch, hidden, 2 * height, 2 * width - 1)]


def get_init_inputs():
    return [channels, hidden]
