import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Cross entropy of logits and class numbers."""

    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels)


rows, classes = (23, 50) if SMALL else (16384, 8192)


def get_inputs():
    return [torch.randn(rows, classes), torch.randint(0, classes, (rows,))]


def get_init_inputs():
    return []
