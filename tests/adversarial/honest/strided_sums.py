# model: row_statistics.py
"""Each of 32 lanes sums every 32nd element."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        lanes = [x[:, lane::32] for lane in range(min(32, x.shape[1]))]
        total, n = sum(v.sum(1) for v in lanes), x.shape[1]
        mean = (total / n).unsqueeze(1)
        squares = sum((v - mean).square().sum(1) for v in lanes)
        return total, torch.stack([v.amax(1) for v in lanes]).amax(0), (squares / (n - 1)).sqrt()
