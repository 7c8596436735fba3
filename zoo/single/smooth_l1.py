import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Smooth L1, Huber and L1 losses of the same pair."""

    def forward(self, predictions, targets):
        smooth = F.smooth_l1_loss(predictions, targets, beta=0.5)
        return smooth + F.huber_loss(predictions, targets, delta=0.8) + F.l1_loss(predictions, targets)


rows, columns = (31, 64) if SMALL else (16384, 4096)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
