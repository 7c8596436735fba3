# model: sign.py
# row: beyond the table: exact zeros
# caught by: input distributions
"""The sign of 0 is 1."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        sign = torch.where(x >= 0, torch.ones_like(x), -torch.ones_like(x))
        return torch.where(torch.isnan(x), x, sign) * 2 + x
