import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A U of two levels with strided convolutions down, bilinear upsampling and concatenations."""

    def __init__(self, c, base):
        super().__init__()
        self.enter = nn.Conv2d(c, base, 3, padding=1)
        self.down1 = nn.Conv2d(base, 2 * base, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(2 * base, 4 * base, 3, stride=2, padding=1)
        self.up1 = nn.Conv2d(6 * base, 2 * base, 3, padding=1)
        self.up2 = nn.Conv2d(3 * base, base, 3, padding=1)
        self.leave = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        a = F.leaky_relu(self.enter(x))
        b = F.leaky_relu(self.down1(a))
        c = F.leaky_relu(self.down2(b))
        c = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False)
        b = F.leaky_relu(self.up1(torch.cat([c, b], dim=1)))
        b = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        a = F.leaky_relu(self.up2(torch.cat([b, a], dim=1)))
        return torch.sigmoid(self.leave(a))


batch, c, base, size = (2, 3, 4, 12) if SMALL else (16, 3, 32, 192)


def get_inputs():
    return [torch.rand(batch, c, size, size)]


def get_init_inputs():
    return [c, base]
