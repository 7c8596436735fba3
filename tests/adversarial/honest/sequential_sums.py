# model: row_statistics.py
"""Sums element after element."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        total, n = torch.zeros_like(x[:, 0]), x.shape[1]
        for j in range(n):
            total = total + x[:, j]
        mean = (total / n).unsqueeze(1)
        squares = torch.zeros_like(total)
        for j in range(n):
            squares = squares + (x[:, j] - mean[:, 0]).square()
        return total, x.amax(1), torch.sqrt(squares / (n - 1))
