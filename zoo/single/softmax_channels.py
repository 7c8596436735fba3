import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Softmax over the channels of an image."""

    def forward(self, x):
        return torch.softmax(x, dim=1)


batch, channels, height, width = (2, 19, 9, 12) if SMALL else (16, 64, 256, 256)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
