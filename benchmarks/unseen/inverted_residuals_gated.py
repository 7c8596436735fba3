import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Inverted(nn.Module):
    def __init__(self, planes, expansion, reduction):
        super().__init__()
        hidden = planes * expansion
        self.expand = nn.Conv2d(planes, hidden, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.depthwise = nn.Conv2d(hidden, hidden, 5, padding=2, groups=hidden, bias=False)
        self.bn2 = nn.BatchNorm2d(hidden)
        self.reduce = nn.Linear(hidden, hidden // reduction)
        self.restore = nn.Linear(hidden // reduction, hidden)
        self.shrink = nn.Conv2d(hidden, planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes)

    def forward(self, x):
        y = F.hardswish(self.bn1(self.expand(x)))
        y = F.hardswish(self.bn2(self.depthwise(y)))
        gate = F.hardsigmoid(self.restore(F.relu(self.reduce(y.mean((2, 3))))))
        return x + self.bn3(self.shrink(y * gate[:, :, None, None]))


class Model(nn.Module):
    """Three inverted residuals with squeeze-and-excite gates, in evaluation."""

    def __init__(self, planes, expansion, reduction, blocks):
        super().__init__()
        self.blocks = nn.Sequential(*[Inverted(planes, expansion, reduction) for _ in range(blocks)])
        self.eval()

    def forward(self, x):
        return self.blocks(x)


batch, planes, expansion, reduction, blocks, size = (2, 4, 2, 4, 2, 8) if SMALL else (32, 40, 6, 4, 3, 42)


def get_inputs():
    return [torch.randn(batch, planes, size, size)]


def get_init_inputs():
    return [planes, expansion, reduction, blocks]
