# model: row_statistics.py
"""Sums in the reverse order."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.flip(1)
        return x.sum(1), x.amax(1), x.std(1)
