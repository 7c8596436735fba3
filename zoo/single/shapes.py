import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Views of every kind between a few additions."""

    def forward(self, x):
        first, second = x.chunk(2, dim=1)
        turned = first.permute(0, 2, 3, 1).reshape(x.shape[0], -1, first.shape[1]).transpose(1, 2)
        flat = second.flatten(2).narrow(2, 0, turned.shape[2])
        joined = torch.stack((turned, flat * 2), dim=1)
        return joined.flip(3)[:, :, ::2].unflatten(1, (1, 2)).squeeze(1).contiguous() + 1, x[:, 0, 1:, :-1].unsqueeze(1)


batch, channels, height, width = (2, 6, 7, 8) if SMALL else (16, 64, 128, 256)


def get_inputs():
    return [torch.randn(batch, channels, height, width)]


def get_init_inputs():
    return []
