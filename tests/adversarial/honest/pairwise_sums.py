# model: row_statistics.py
"""Sums in pairs, as a tree."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        def pairwise(v):
            while v.shape[1] > 1:
                odd = v[:, -1:] if v.shape[1] % 2 else v[:, :0]
                v = torch.cat([v[:, 0 : v.shape[1] - 1 : 2] + v[:, 1::2], odd], 1)
            return v[:, 0]

        total, n = pairwise(x), x.shape[1]
        deviation = x - (total / n).unsqueeze(1)
        return total, x.amax(1), torch.sqrt(pairwise(deviation * deviation) / (n - 1))
