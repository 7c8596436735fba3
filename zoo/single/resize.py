import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Images brought to other sizes: by a fraction, corners on corners, by cubics; added to one of that size."""

    def forward(self, x, y):
        larger = F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False)
        near = F.interpolate(x, size=y.shape[2:], mode="nearest-exact")
        corners = F.interpolate(torch.relu(x), size=y.shape[2:], mode="bilinear", align_corners=True)
        return torch.sigmoid(larger), near * y + corners, F.interpolate(x, scale_factor=0.4, mode="bicubic")


batch, channels, size = (2, 3, 10) if SMALL else (16, 32, 128)


def get_inputs():
    return [torch.randn(batch, channels, size, size), torch.randn(batch, channels, 2 * size - 3, 2 * size + 1)]


def get_init_inputs():
    return []
