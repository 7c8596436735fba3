import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Layers under a checkpoint; scale and centre are computed under no_grad, and a straight-through estimate is detached."""

    def __init__(self, features, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(features, features) for _ in range(layers))

    @torch.no_grad()
    def scale(self, x):
        return x.abs().amax(-1, keepdim=True).clamp(min=1e-3)

    def forward(self, x):
        scale = self.scale(x)
        for layer in self.layers:
            x = checkpoint(lambda layer, x: F.relu(layer(x)) + x, layer, x, use_reentrant=False)
        with torch.no_grad():
            centre = x.mean()
        y = (x - centre) / scale
        return y + (torch.round(y) - y).detach(), centre


batch, features = (5, 6) if SMALL else (16384, 1024)


def get_inputs():
    return [torch.randn(batch, features)]


def get_init_inputs():
    return [features, 2]
