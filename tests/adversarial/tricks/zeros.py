# model: faint.py
# row: output smaller than the tolerance, so zeros are accepted
# caught by: output's own spread
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return 0 * self.linear(x)
