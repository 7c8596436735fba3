import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Activations that few use, as modules, in a chain; a softmax over the channels of an image; a gate."""

    def __init__(self, channels):
        super().__init__()
        self.chain = nn.Sequential(
            nn.CELU(alpha=0.7), nn.Tanhshrink(), nn.Softshrink(0.1), nn.PReLU(channels, init=0.3), nn.LogSigmoid(), nn.Threshold(-2.0, -3.0)
        )
        self.random = nn.RReLU(0.1, 0.4).eval()
        self.gate = nn.GLU(dim=-3)
        self.soft = nn.Softmax2d()

    def forward(self, x):
        y = self.chain(x)
        z = self.gate(y) + F.hardshrink(F.rrelu(x[:, ::2], 0.2, 0.3, training=False), 0.4)
        return self.soft(z), F.softmin(z, dim=-1), F.softsign(y).sum(-1), F.dropout(y, 0.5, training=False)


batch, channels, height, width = (2, 6, 5, 9) if SMALL else (32, 64, 96, 96)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return [channels]
