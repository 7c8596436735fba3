import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A stack of gated dilated convolutions whose skips are summed, two 1x1 convolutions behind them."""

    def __init__(self, residual, skip, dilations, classes):
        super().__init__()
        self.enter = nn.Conv1d(1, residual, 1)
        self.gated = nn.ModuleList(nn.Conv1d(residual, 2 * residual, 2, dilation=d) for d in dilations)
        self.residuals = nn.ModuleList(nn.Conv1d(residual, residual, 1) for _ in dilations)
        self.skips = nn.ModuleList(nn.Conv1d(residual, skip, 1) for _ in dilations)
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, classes, 1))
        self.dilations = dilations

    def forward(self, wave):
        x = self.enter(wave)
        total = 0
        for gated, residual, skip, dilation in zip(self.gated, self.residuals, self.skips, self.dilations, strict=True):
            a, b = gated(F.pad(x, (dilation, 0))).chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            total = total + skip(h)
            x = x + residual(h)
        return self.leave(total)


batch, residual, skip, classes, length = (2, 4, 5, 6, 30) if SMALL else (16, 48, 96, 64, 6000)
dilations = [1, 2] if SMALL else [1, 2, 4, 8, 16, 32]


def get_inputs():
    return [torch.randn(batch, 1, length)]


def get_init_inputs():
    return [residual, skip, dilations, classes]
