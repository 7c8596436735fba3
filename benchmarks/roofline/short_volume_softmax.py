import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """3-d of three channels, softmax over channels, two pools: short."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels_in, channels_out, kernel)

    def forward(self, x):
        y = torch.softmax(self.conv(x), dim=1)
        return nn.functional.max_pool3d(nn.functional.max_pool3d(y, 2), 2)


batch, depth, height, width = (2, 10, 11, 13) if SMALL else (128, 16, 32, 32)


def get_inputs():
    return [torch.rand(batch, 3, depth, height, width)]


def get_init_inputs():
    return [3, 16, 3]
