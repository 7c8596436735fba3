import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Variance, standard deviation and both with the mean, over several dimensions."""

    def forward(self, x):
        var, mean = torch.var_mean(x, dim=(1, 2), unbiased=False)
        return torch.var(x, dim=2), torch.std(x, dim=0, keepdim=True), var, mean


batch, channels, length = (5, 8, 37) if SMALL else (64, 128, 4096)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return []
