# model: log_sigmoid.py
# row: beyond the table: large negative values
# caught by: input distributions
"""exp(-x) overflows far below zero."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return -torch.log1p(torch.exp(-x))
