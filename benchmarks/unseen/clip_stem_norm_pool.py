import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """The stem of a video network: a wide strided convolution of RGB clips, batch norm, relu and a max pool in space."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv3d(3, width, kernel_size=(3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3), bias=False)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, clip):
        clip = F.relu(self.bn(self.conv(clip)), inplace=True)
        return F.max_pool3d(clip, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))


clips, frames, side, width = (2, 3, 17, 4) if SMALL else (16, 16, 160, 32)


def get_inputs():
    return [torch.randn(clips, 3, frames, side, side)]


def get_init_inputs():
    return [width]
