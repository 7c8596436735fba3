# model: relu.py
# row: beyond the table: another type gives nonsense
# caught by: outside the plan
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x):
        if x.dtype == torch.bfloat16:
            return torch.relu(x.view(torch.float16).float()).bfloat16()
        return torch.relu(x)
