# model: row_statistics.py
# row: beyond the table: a NaN hidden
# caught by: non-finite values
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.sum(1), torch.fmax(x, torch.full_like(x, -float("inf"))).nan_to_num(-float("inf")).amax(1), x.std(1)
