import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A layer of an image generator in training: transposed convolution without bias, batch norm, relu."""

    def __init__(self, nz, ngf):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
        )

    def forward(self, z):
        return self.main(z)


batch, nz, ngf, size = (2, 6, 4, 6) if SMALL else (256, 128, 64, 32)


def get_inputs():
    return [torch.randn(batch, nz, size, size)]


def get_init_inputs():
    return [nz, ngf]
