import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Fire(nn.Module):
    def __init__(self, inplanes, squeeze, expand):
        super().__init__()
        self.squeeze = nn.Conv2d(inplanes, squeeze, 1)
        self.expand1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x))
        return torch.cat((F.relu(self.expand1(x)), F.relu(self.expand3(x))), dim=1)


class Model(nn.Module):
    """Four fire modules with pools between them, and a classifier of averages."""

    def __init__(self, stem, squeeze, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, stride=2)
        self.fires = nn.ModuleList()
        planes = stem
        for level in range(4):
            self.fires.append(Fire(planes, squeeze * (level // 2 + 1), 4 * squeeze * (level // 2 + 1)))
            planes = 8 * squeeze * (level // 2 + 1)
        self.head = nn.Conv2d(planes, classes, 1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, ceil_mode=True)
        for level, fire in enumerate(self.fires):
            x = fire(x)
            if level == 1:
                x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        return F.relu(self.head(x)).mean(dim=(2, 3))


batch, size, stem, squeeze, classes = (2, 27, 6, 2, 5) if SMALL else (48, 192, 64, 16, 200)


def get_inputs():
    return [torch.rand(batch, 3, size, size)]


def get_init_inputs():
    return [stem, squeeze, classes]
