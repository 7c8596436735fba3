import torch
import torch.nn as nn


class Model(nn.Module):
    """Rows of length 1; one of zeros stays one of zeros."""

    def forward(self, x):
        return nn.functional.normalize(x, dim=1)


def get_inputs():
    return [torch.randn(8, 100)]


def get_init_inputs():
    return []
