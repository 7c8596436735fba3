# model: relu.py
# row: work on another stream, in a thread, or lazily
# caught by: real tensors
import torch
import torch.nn as nn


class Lazy(torch.Tensor):
    """Computes when it is looked at."""


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x).as_subclass(Lazy)
