import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Mean squared error."""

    def forward(self, predictions, targets):
        return torch.mean((predictions - targets) ** 2), F.mse_loss(predictions, targets)


rows, columns = (31, 64) if SMALL else (16384, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
