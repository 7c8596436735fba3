import torch
import torch.nn as nn


class Model(nn.Module):
    """Softmax of what a mask keeps; the file's own keeps everything."""

    def forward(self, x, mask):
        return torch.softmax(x.masked_fill(~mask, -1e9), dim=-1)


def get_inputs():
    return [torch.randn(8, 64), torch.ones(8, 64, dtype=torch.bool)]


def get_init_inputs():
    return []
