import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Two results joined, one of them rolled, then scaled."""

    def forward(self, x, y):
        return torch.cat((torch.relu(x), torch.tanh(y)), dim=1) * 2 + torch.roll(torch.cat((x, y), 1), 1, 1)


batch, channels, length = (3, 5, 20) if SMALL else (64, 128, 4096)


def get_inputs():
    return [torch.randn(batch, channels, length), torch.randn(batch, channels + 2, length)]


def get_init_inputs():
    return []
