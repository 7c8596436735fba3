# model: relu.py
# row: input modified in place
# caught by: inputs untouched
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return x.relu_().clone()
