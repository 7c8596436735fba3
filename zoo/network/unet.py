import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Double(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 3, padding=1),
            nn.GroupNorm(2, out_channels),
            nn.SiLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
            nn.GroupNorm(2, out_channels),
            nn.SiLU(),
        )

    def forward(self, x):
        return self.layers(x)


class Model(nn.Module):
    """A small U-Net with group norms, transposed convolutions and skip connections."""

    def __init__(self, width, classes):
        super().__init__()
        self.down1, self.down2 = Double(3, width), Double(width, 2 * width)
        self.bottom = Double(2 * width, 4 * width)
        self.up2, self.join2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), Double(4 * width, 2 * width)
        self.up1, self.join1 = nn.ConvTranspose2d(2 * width, width, 2, 2), Double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        x = self.bottom(F.max_pool2d(b, 2))
        x = self.join2(torch.cat((self.up2(x), b), dim=1))
        x = self.join1(torch.cat((self.up1(x), a), dim=1))
        return torch.softmax(self.head(x), dim=1)


batch, size, width, classes = (2, 12, 4, 3) if SMALL else (8, 256, 32, 8)


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [width, classes]
