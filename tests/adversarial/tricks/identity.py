# model: relu.py
# row: no-op or identity kernel
# caught by: input distributions
import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone()
