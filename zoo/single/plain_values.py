import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Words, sizes, bounds, infinity and nothing beside the tensors: pads and clamps that a caller chooses."""

    def forward(self, pad, x, mode, mask=None, bound=float("inf"), scales=(1.0, 2.0)):
        y = F.pad(x, pad, mode=mode).clamp(max=bound)
        if mask is not None:
            y = y * mask
        return [y * s for s in scales], y.mean(-1)


batch, channels, size = (2, 3, 9) if SMALL else (32, 64, 224)


def get_inputs():
    return [(1, 2, 0, 3), torch.randn(batch, channels, size, size), "reflect", None, float("inf"), [0.5, 3.0]]


def get_init_inputs():
    return []
