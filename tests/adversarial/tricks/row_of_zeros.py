# model: normalize.py
# row: beyond the table: exact zeros
# caught by: input distributions
"""Divides by the length of a row without the eps that keeps a row of zeros."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x / x.square().sum(1, keepdim=True).sqrt()
