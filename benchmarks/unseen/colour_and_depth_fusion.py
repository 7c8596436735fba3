import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Stream(nn.Module):
    def __init__(self, c_in, width):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, width, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.conv2(self.act(self.conv1(x))))


class Model(nn.Module):
    """Two streams, colour and depth, one weighting the other, joined before a head with two results."""

    def __init__(self, width, classes):
        super().__init__()
        self.colour, self.depth = Stream(3, width), Stream(1, width)
        self.weigh = nn.Conv2d(2 * width, 2 * width, 1)
        self.classify = nn.Linear(4 * width, classes)
        self.centre = nn.Linear(4 * width, 2)

    def forward(self, rgb, d):
        colour, depth = self.colour(rgb), self.depth(d)
        colour = colour * torch.sigmoid(self.weigh(depth))
        joined = torch.cat((colour, depth), dim=1).mean(dim=[2, 3])
        return self.classify(joined), self.centre(joined)


batch, width, classes, size = (2, 4, 5, 14) if SMALL else (64, 48, 51, 160)


def get_inputs():
    return [torch.rand(batch, 3, size, size), torch.rand(batch, 1, size, size)]


def get_init_inputs():
    return [width, classes]
