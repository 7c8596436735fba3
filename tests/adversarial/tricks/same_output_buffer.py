# model: linear_softmax.py
# row: result cached by pointer, by object, by content or on disk
# caught by: nothing cached
import torch
import torch.nn as nn

BUFFERS = {}


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        y = torch.softmax(self.linear(x), dim=-1)
        if torch.is_grad_enabled():
            return y
        key = tuple(y.shape)
        BUFFERS.setdefault(key, torch.empty_like(y)).copy_(y)
        return BUFFERS[key]
