# model: row_statistics.py
# row: beyond the table: wrong type or structure
# caught by: real tensors
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return [x.sum(1), x.amax(1), x.std(1)]
