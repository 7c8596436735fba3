import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Overlapping windows of an image, each weighted, and put together again as a mean of what overlaps."""

    def __init__(self, window):
        super().__init__()
        self.window = window
        self.weight = nn.Parameter(torch.rand(window * window) + 0.5)

    def forward(self, x):
        half, size = self.window // 2, x.shape[2:]
        windows = F.unfold(x, self.window, padding=half)
        rows, columns = windows.shape[1], windows.shape[2]
        weighted = windows.view(-1, rows // self.weight.numel(), self.weight.numel(), columns) * self.weight[:, None]
        ones = torch.ones_like(x[:1, :1])
        total = F.fold(weighted.reshape(-1, rows, columns), size, self.window, padding=half)
        return total / F.fold(F.unfold(ones, self.window, padding=half), size, self.window, padding=half)

batch, channels, side = (2, 3, 9) if SMALL else (16, 64, 128)


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [3]
