import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution in fp16, average pooling, sigmoid and a sum over everything but the batch."""

    def __init__(self, in_channels, out_channels, kernel):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, dtype=torch.float16)

    def forward(self, x):
        x = torch.sigmoid(F.avg_pool2d(self.conv(x), 4))
        return x.sum(dim=[1, 2, 3])


batch, in_channels, out_channels, height, width = (2, 4, 8, 14, 18) if SMALL else (64, 32, 64, 130, 130)
kernel = 3


def get_inputs():
    return [torch.rand(batch, in_channels, height, width, dtype=torch.float16)]


def get_init_inputs():
    return [in_channels, out_channels, kernel]
