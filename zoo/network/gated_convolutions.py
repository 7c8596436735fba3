import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Dilated convolutions along time with gates, skips and a norm over all channels between them."""

    def __init__(self, channels, layers):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(channels, 2 * channels, 3, padding=2**i, dilation=2**i) for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, channels) for _ in range(layers))

    def forward(self, x):
        skips = 0
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            value, gate = convolution(x).chunk(2, 1)
            gated = torch.tanh(value) * torch.sigmoid(gate)
            skips = skips + gated
            x = norm(x + gated)
        return skips.relu(), x.mean(-1)


batch, channels, length = (2, 4, 11) if SMALL else (16, 128, 8192)


def get_inputs():
    return [torch.randn(batch, channels, length)]


def get_init_inputs():
    return [channels, 3]
