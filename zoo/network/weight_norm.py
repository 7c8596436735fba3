import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A dilated convolution and a layer whose weights are normalised, by a hook (which cannot be copied) and by a parametrization."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.utils.weight_norm(nn.Conv1d(channels, channels, 3, dilation=2))
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(channels, channels))

    def forward(self, x):
        y = F.leaky_relu(self.conv(F.pad(x, (4, 0))), 0.1)
        return torch.tanh(self.layer(y.transpose(1, 2))) * 2


batch, channels, length = (2, 4, 9) if SMALL else (16, 256, 4096)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels]
