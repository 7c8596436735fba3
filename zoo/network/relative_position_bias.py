import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Attention weights from scores and a table of biases by relative position."""

    def __init__(self, heads, side):
        super().__init__()
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads))
        place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + side - 1
        self.register_buffer("which", apart[0] * (2 * side - 1) + apart[1])

    def forward(self, scores):
        bias = self.table[self.which.view(-1)].view(*self.which.shape, -1).permute(2, 0, 1)
        return torch.softmax(scores * 0.125 + bias, -1)

batch, heads, side = (2, 3, 3) if SMALL else (128, 12, 14)


def get_inputs():
    return [torch.randn(batch, heads, side**2, side**2)]


def get_init_inputs():
    return [heads, side]
