import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Differences across edges that are mirrored, held or joined, and a sharpened image of them."""

    def forward(self, x):
        mirrored = F.pad(torch.tanh(x), (1, 1, 1, 1), mode="reflect")
        held = F.pad(x, (0, 2, 1, 1), mode="replicate")
        joined = F.pad(x, (2, 0, 0, 2), mode="circular")
        across = torch.roll(x, 1, 3) - torch.roll(x, (-1, 2), (3, 2))
        return mirrored[:, :, 2:, 2:] + held[:, :, 2:, 2:] * joined[:, :, 2:, 2:] + across, x.unfold(3, 4, 2).amax(-1)


batch, channels, size = (2, 3, 12) if SMALL else (16, 32, 256)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return []
