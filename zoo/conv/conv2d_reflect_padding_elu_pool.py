import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A convolution of mirrored edges, elu, an average pool with overlap, and a convolution of joined edges."""

    def __init__(self, in_ch, out_ch, k):
        super().__init__()
        self.first = nn.Conv2d(in_ch, out_ch, k, padding=k // 2, padding_mode="reflect")
        self.second = nn.Conv2d(out_ch, out_ch, 3, padding=1, padding_mode="circular", bias=False)
        self.pool = nn.AvgPool2d(3, 2, 1, count_include_pad=False)

    def forward(self, x):
        x = self.pool(F.elu(self.first(x), 0.7))
        return self.second(x).abs().sqrt()


batch, in_ch, out_ch, size = (2, 3, 8, 15) if SMALL else (32, 16, 64, 113)


def get_inputs():
    return [torch.randn(batch, in_ch, size, size + 2)]


def get_init_inputs():
    return [in_ch, out_ch, 5]
