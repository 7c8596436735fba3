import math
import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A table written out in forward, added to every row."""

    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, x):
        table = torch.tensor([math.sin(0.1 * i) for i in range(self.features)])
        return torch.tanh(x + table.to(x.device))


rows, features = (11, 70) if SMALL else (32768, 2048)


def get_inputs():
    return [torch.randn(rows, features)]


def get_init_inputs():
    return [features]
