# model: float16.py
"""A float16 model computed in fp32 between its ends."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return (torch.softmax(x.float() * y.float(), dim=-1) * 8).to(x.dtype)
