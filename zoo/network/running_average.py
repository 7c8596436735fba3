import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A model with buffers of its own: a running mean of its inputs and a counter."""

    def __init__(self, features, momentum):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.mean.mul_(1 - self.momentum).add_(self.momentum * x.detach().mean(0))
        self.calls += 1
        return torch.sigmoid(x - self.mean)


batch, features = (9, 22) if SMALL else (32768, 2048)
momentum = 0.1


def get_inputs():
    return [torch.randn(batch, features)]


def get_init_inputs():
    return [features, momentum]
