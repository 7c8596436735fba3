import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A recurrent cell written out and unrolled over a few steps; all states are stacked."""

    def __init__(self, features, hidden):
        super().__init__()
        self.x = nn.Linear(features, 4 * hidden)
        self.h = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x, h, c):
        found = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.x(x[:, t]) + self.h(h)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            found.append(h)
        return torch.stack(found, dim=1), (h, c)


batch, steps, features, hidden = (3, 3, 6, 5) if SMALL else (8192, 4, 256, 512)


def get_inputs():
    return [torch.randn(batch, steps, features), torch.randn(batch, hidden), torch.randn(batch, hidden)]


def get_init_inputs():
    return [features, hidden]
