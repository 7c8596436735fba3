import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Transposed 4×4 of stride 2, a softmax over channels, sigmoid."""

    def __init__(self, channels_in, channels_out, kernel):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels_in, channels_out, kernel, stride=2, padding=1)

    def forward(self, x):
        return torch.sigmoid(torch.softmax(self.conv(x), dim=1) * 2.0)


batch, height, width = (3, 12, 13) if SMALL else (64, 64, 64)


def get_inputs():
    return [torch.rand(batch, 64, height, width)]


def get_init_inputs():
    return [64, 128, 4]
