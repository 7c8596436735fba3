# model: linear_softmax.py
# row: result cached by pointer, by object, by content or on disk
# caught by: nothing cached
import torch
import torch.nn as nn

RESULTS = {}


class ModelNew(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x):
        key = (tuple(x.shape), torch.is_grad_enabled())
        if key not in RESULTS:
            RESULTS[key] = torch.softmax(self.linear(x), dim=-1)
        return RESULTS[key].clone()
