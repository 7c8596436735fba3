import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Padding with a constant, by reflection and by repetition."""

    def forward(self, x):
        constant = F.pad(x, (1, 2, 3, 0), value=0.5)
        mirrored = F.pad(x * 2, (1, 2, 2, 1), mode="reflect")
        repeated = F.pad(x + 1, (2, 1, 0, 3), mode="replicate")
        return constant + mirrored - repeated


batch, channels, height, width = (2, 3, 9, 10) if SMALL else (16, 32, 256, 256)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
