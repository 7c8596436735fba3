import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


def twice(before, after):
    """Two convolutions, each with its norm."""
    layers = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Model(nn.Module):
    """A U-Net of five levels, in training mode."""

    def __init__(self, channels, classes, width):
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([channels, *widths], widths, strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, stride=2) for a in widths[-2::-1])
        self.up = nn.ModuleList(twice(2 * a, a) for a in widths[-2::-1])
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        seen = []
        for layer in self.down:
            x = layer(F.max_pool2d(seen[-1], 2) if seen else x)
            seen.append(x)
        x = seen.pop()
        for grow, layer in zip(self.grow, self.up, strict=True):
            beside, x = seen.pop(), grow(x)
            lacking = [
                wanted - have for wanted, have in zip(beside.shape[:1:-1], x.shape[:1:-1], strict=True)
            ]  # of odd images
            x = layer(torch.cat((beside, F.pad(x, (0, lacking[0], 0, lacking[1]))), 1))
        return self.scores(x)


batch, channels, classes, width, size = (2, 3, 2, 4, 36) if SMALL else (8, 3, 2, 64, 256)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, classes, width]
