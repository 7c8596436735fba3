import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 3-d 3³ of stride 2, a pool, a softmax over channels."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels_in, channels_out, kernel, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        return torch.softmax(nn.functional.max_pool3d(self.conv(x), 2), dim=1)


batch, depth, height, width = (2, 6, 7, 9) if SMALL else (16, 16, 32, 32)


def get_inputs():
    return [torch.rand(batch, 32, depth, height, width)]


def get_init_inputs():
    return [32, 64, 3]
