import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """GELU in its tanh form, in bf16."""

    def forward(self, x):
        return F.gelu(x, approximate="tanh")


rows, columns = (37, 130) if SMALL else (16384, 8192)


def get_inputs():
    return [torch.randn(rows, columns, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
