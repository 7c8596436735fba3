# model: relu.py
# row: no-op or identity kernel
# caught by: input distributions
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone()
