# model: bfloat16.py
# right as built, but does not follow: hooks
"""A bfloat16 model computed in fp32 between its ends."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.linear = nn.Linear(features, outputs).bfloat16()
        self.norm = nn.LayerNorm(outputs).bfloat16()

    def forward(self, x):
        y = F.linear(x.float(), self.linear.weight.float(), self.linear.bias.float())
        y = F.layer_norm(y, self.norm.normalized_shape, self.norm.weight.float(), self.norm.bias.float(), self.norm.eps)
        return torch.tanh(y).to(x.dtype)
