import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Upsampling by repetition and by interpolation."""

    def forward(self, x):
        near = F.interpolate(x, scale_factor=2, mode="nearest")
        smooth = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return F.relu(near - smooth)


batch, channels, height, width = (2, 3, 9, 10) if SMALL else (16, 32, 128, 128)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
