import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Mish in fp16."""

    def forward(self, x):
        return F.mish(x)


rows, columns = (33, 136) if SMALL else (16384, 8192)


def get_inputs():
    return [torch.randn(rows, columns, dtype=torch.float16)]


def get_init_inputs():
    return []
