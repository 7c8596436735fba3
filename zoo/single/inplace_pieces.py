import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A tensor filled piece by piece: slices, strides, a transposed view, masks and a diagonal, all in place."""

    def forward(self, x, mask):
        y = torch.zeros_like(x)
        y[:, ::2] = x[:, 1::2]
        y[:, 1::2] += x[:, ::2].sigmoid()
        y[..., -1].mul_(2.0)
        z = y.clone()
        z.transpose(1, 2).sub_(x.transpose(1, 2), alpha=0.5)
        z.masked_fill_(mask, -1.0)
        z[:, 0, :] = 3
        z.diagonal(dim1=-2, dim2=-1).add_(1.0)
        total = 0
        for i in range(3):
            total += z[:, i] * (i + 1)
        return y, z, total, z.neg_()


batch, rows, columns = (3, 8, 11) if SMALL else (64, 512, 1023)


def get_inputs():
    return [torch.randn(batch, rows, columns), torch.rand(batch, rows, columns) < 0.3]


def get_init_inputs():
    return []
