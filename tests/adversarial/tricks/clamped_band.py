# model: silu.py
# row: beyond the table: values between those of the others
# caught by: input distributions
"""Beyond ±6 silu is taken to be 0 or the identity, up to ±9."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.where((x < -6) & (x > -9), torch.zeros_like(x), nn.functional.silu(x))
        return torch.where((x > 6) & (x < 9), x, y)
