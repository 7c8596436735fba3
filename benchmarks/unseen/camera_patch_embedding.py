import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """RGB patches through a strided convolution, a layer norm over the channels, and back to channels first."""

    def __init__(self, channels, embedding, patch):
        super().__init__()
        self.proj = nn.Conv2d(channels, embedding, kernel_size=patch, stride=patch)
        self.norm = nn.LayerNorm(embedding, eps=1e-6)

    def forward(self, images):
        patches = self.proj(images).permute(0, 2, 3, 1)
        return self.norm(patches).permute(0, 3, 1, 2)


batch_size, channels, embedding, patch, side = (2, 3, 8, 4, 20) if SMALL else (256, 3, 96, 4, 224)


def get_inputs():
    return [torch.randn(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, embedding, patch]
