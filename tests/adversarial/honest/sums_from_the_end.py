# model: row_statistics.py
"""Sums in the reverse order."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.flip(1)
        return x.sum(1), x.amax(1), x.std(1)
