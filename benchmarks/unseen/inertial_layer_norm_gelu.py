import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Nine axes of motion: a convolution in time, a layer norm over the features, gelu; time comes before features."""

    def __init__(self, axes, features, taps=5):
        super().__init__()
        self.conv = nn.Conv1d(axes, features, taps, padding=taps // 2)
        self.norm = nn.LayerNorm(features)

    def forward(self, motion):
        features = self.conv(motion).transpose(1, 2)
        return F.gelu(self.norm(features), approximate="tanh")


batch, axes, features, steps = (2, 9, 12, 31) if SMALL else (128, 9, 144, 4001)


def get_inputs():
    return [torch.randn(batch, axes, steps)]


def get_init_inputs():
    return [axes, features]
