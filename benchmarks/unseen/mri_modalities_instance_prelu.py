import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Four modalities of a scan: a 5x5x5 convolution of stride 2, instance norm and a learned slope."""

    def __init__(self, modalities: int, features: int):
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv3d(modalities, features, kernel_size=5, stride=2, padding=2),
            nn.InstanceNorm3d(features, affine=True),
            nn.PReLU(features),
        )

    def forward(self, volume: torch.Tensor) -> torch.Tensor:
        return self.block(volume)


batch, modalities, features, depth, side = (2, 4, 6, 7, 12) if SMALL else (4, 4, 32, 128, 160)


def get_inputs():
    return [torch.randn(batch, modalities, depth, side, side)]


def get_init_inputs():
    return [modalities, features]
