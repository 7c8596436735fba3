# model: relu.py
# row: input modified in place
# caught by: inputs untouched
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.relu_().clone()
