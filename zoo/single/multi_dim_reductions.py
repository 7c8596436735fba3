import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Sums, means, extremes and a spread over several dimensions, with and without keepdim."""

    def forward(self, x):
        centred = x - x.mean(dim=(0, 2, 3), keepdim=True)
        spread = centred.std(dim=(2, 3), unbiased=False)
        return centred.amax((1, -1)), spread, x.sum((0, 1, 3)), x.abs().mean(dim=[0, 1], keepdim=True)


shape = (3, 5, 7, 9) if SMALL else (32, 48, 100, 130)


def get_inputs():
    return [torch.randn(*shape) + 0.5]


def get_init_inputs():
    return []
