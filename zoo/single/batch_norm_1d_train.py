import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Batch norm of rows in training, without weights, with a cumulative average."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, affine=False, momentum=0.3)

    def forward(self, x):
        return self.norm(x) * 0.5


batch, features = (16, 24) if SMALL else (32768, 1024)


def get_inputs():
    return [torch.randn(batch, features)]


def get_init_inputs():
    return [features]
