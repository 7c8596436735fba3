import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Four microphones through a learned filterbank, its energies compressed by a logarithm and smoothed."""

    def __init__(self, mics, filters, taps, hop):
        super().__init__()
        self.bank = nn.Conv1d(mics, filters, taps, stride=hop, bias=False)
        self.smooth = nn.AvgPool1d(4, stride=2)
        self.floor = 1e-5

    def forward(self, wave):
        energy = self.bank(wave).square()
        return torch.log(self.smooth(energy) + self.floor)


batch, mics, filters, taps, hop, samples = (2, 4, 6, 9, 2, 75) if SMALL else (24, 4, 80, 101, 5, 80000)


def get_inputs():
    return [torch.randn(batch, mics, samples)]


def get_init_inputs():
    return [mics, filters, taps, hop]
