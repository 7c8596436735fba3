import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A sum over the first dimension, in bf16."""

    def forward(self, x):
        return x.sum(0)


rows, columns = (70, 40) if SMALL else (65536, 1024)


def get_inputs():
    return [torch.randn(rows, columns, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
