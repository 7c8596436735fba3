# model: bfloat16.py
# right as built, but does not follow: hooks
"""The product in bfloat16, statistics and the rest in fp32."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.linear = nn.Linear(features, outputs).bfloat16()
        self.norm = nn.LayerNorm(outputs).bfloat16()

    def forward(self, x):
        y = self.linear(x).float()
        variance, mean = torch.var_mean(y, -1, keepdim=True, correction=0)
        y = (y - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight.float() + self.norm.bias.float()
        return torch.tanh(y).to(x.dtype)
