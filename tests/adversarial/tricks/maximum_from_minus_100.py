# model: row_statistics.py
# row: beyond the table: large negative values
# caught by: input distributions
"""A maximum that begins at -100 instead of -infinity."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.sum(1), x.clamp(min=-100.0).amax(1), x.std(1)
