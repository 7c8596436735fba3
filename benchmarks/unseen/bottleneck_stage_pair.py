import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Unit(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.reduce = nn.Sequential(nn.Conv2d(inplanes, planes, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU())
        self.spatial = nn.Sequential(
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes), nn.ReLU()
        )
        self.widen = nn.Sequential(nn.Conv2d(planes, 4 * planes, 1, bias=False), nn.BatchNorm2d(4 * planes))
        self.project = None
        if stride > 1 or inplanes != 4 * planes:
            self.project = nn.Sequential(
                nn.Conv2d(inplanes, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes)
            )
        self.act = nn.ReLU()

    def forward(self, x):
        identity = x if self.project is None else self.project(x)
        return self.act(self.widen(self.spatial(self.reduce(x))) + identity)


class Model(nn.Module):
    """A stage of four bottleneck units in training with two images; the first of stride 2."""

    def __init__(self, inplanes, planes, units):
        super().__init__()
        self.units = nn.ModuleList([Unit(inplanes, planes, 2)])
        self.units.extend(Unit(4 * planes, planes) for _ in range(units - 1))

    def forward(self, x):
        for unit in self.units:
            x = unit(x)
        return x


batch, inplanes, planes, units, size = (2, 6, 3, 2, 9) if SMALL else (2, 256, 128, 4, 128)


def get_inputs():
    return [torch.randn(batch, inplanes, size, size)]


def get_init_inputs():
    return [inplanes, planes, units]
