import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A 3-d convolution to one channel, the max over that channel, sigmoid, a pool and the mean of all."""

    def __init__(self, in_channels):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, 1, 3, padding=1)

    def forward(self, x):
        x = torch.max(self.conv(x), dim=1, keepdim=True)[0]
        x = F.avg_pool3d(torch.sigmoid(x), 2)
        return x.mean(dim=(1, 2, 3, 4))


batch, in_channels, shape = (2, 3, (5, 7, 6)) if SMALL else (16, 32, (17, 65, 63))


def get_inputs():
    return [torch.randn(batch, in_channels, *shape)]


def get_init_inputs():
    return [in_channels]
