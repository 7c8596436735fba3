import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A matrix times a vector, both inputs."""

    def forward(self, matrix, vector):
        return torch.mv(matrix, vector)


rows, columns = (40, 33) if SMALL else (24000, 18000)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(columns)]


def get_init_inputs():
    return []
