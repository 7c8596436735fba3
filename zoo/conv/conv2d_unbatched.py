import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """One image without a batch: a wide convolution, a norm of its own, a pool, a 1 x 1 convolution, a mean."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.first = nn.Conv2d(channels, hidden, 7, stride=3, padding=(2, 4))
        self.norm = nn.InstanceNorm2d(hidden)
        self.second = nn.Conv2d(hidden, hidden, 1)

    def forward(self, image):
        assert image.dim() == 3, f"an image has three dimensions, not {image.dim()}"
        y = F.max_pool2d(F.silu(self.norm(self.first(image))), 2)
        return self.second(y).mean((-1, -2)), y


channels, hidden, height, width = (3, 8, 26, 31) if SMALL else (3, 64, 1024, 1536)


def get_inputs():
    return [torch.rand(channels, height, width)]


def get_init_inputs():
    return [channels, hidden]
