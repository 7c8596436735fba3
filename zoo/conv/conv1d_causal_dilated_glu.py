import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A gated step of WaveNet: padded on the left only, dilated, tanh times sigmoid, a residual and a skip."""

    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.left = (kernel - 1) * dilation
        self.dilated = nn.Conv1d(channels, 2 * channels, kernel, dilation=dilation)
        self.residual = nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        both = self.dilated(F.pad(x, (self.left, 0)))
        filt, gate = both.chunk(2, 1)
        z = torch.tanh(filt) * torch.sigmoid(gate)
        return self.residual(z) + x, self.skip(z)


batch, channels, length = (2, 6, 40) if SMALL else (16, 64, 16000)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, 2, 16]
