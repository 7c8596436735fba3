import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Dilated branches and a branch of global averages, concatenated and projected: segmentation's pyramid."""

    def __init__(self, c_in, c_mid, rates):
        super().__init__()
        self.point = nn.Conv2d(c_in, c_mid, 1)
        self.branches = nn.ModuleList(nn.Conv2d(c_in, c_mid, 3, padding=r, dilation=r) for r in rates)
        self.image = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c_in, c_mid, 1), nn.ReLU())
        self.project = nn.Conv2d((len(rates) + 2) * c_mid, c_mid, 1)

    def forward(self, x):
        found = [F.relu(self.point(x))] + [F.relu(branch(x)) for branch in self.branches]
        found.append(self.image(x).expand(-1, -1, x.size(2), x.size(3)))
        return F.relu(self.project(torch.cat(found, dim=1)))


batch, c_in, c_mid, size = (2, 6, 4, 9) if SMALL else (32, 256, 96, 48)
rates = (2, 3) if SMALL else (6, 12, 18)


def get_inputs():
    return [torch.randn(batch, c_in, size, size)]


def get_init_inputs():
    return [c_in, c_mid, rates]
