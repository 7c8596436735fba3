import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Hinge loss: a column of targets against rows of predictions."""

    def forward(self, predictions, targets):
        return torch.mean(torch.clamp(1 - predictions * targets, min=0))


rows, columns = (30, 44) if SMALL else (16384, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.randint(0, 2, (rows, 1)).float() * 2 - 1]


def get_init_inputs():
    return []
