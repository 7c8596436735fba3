import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """3-d of few channels, a scale, a pool to one, a sum."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.Conv3d(channels_in, channels_out, kernel)

    def forward(self, x):
        y = torch.relu(self.conv(x) / 2.0)
        return nn.functional.adaptive_avg_pool3d(y, 1).sum(dim=1)


batch, depth, height, width = (2, 6, 7, 9) if SMALL else (128, 16, 64, 64)


def get_inputs():
    return [torch.rand(batch, 8, depth, height, width)]


def get_init_inputs():
    return [8, 16, 3]
