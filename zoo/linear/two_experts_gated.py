import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Two experts and a gate: a soft mixture, an einsum over the experts, a residual and a bias of odd shape."""

    def __init__(self, features, hidden, experts=2):
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, features, hidden) * features**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, features) * hidden**-0.5)
        self.gate = nn.Linear(features, experts, bias=False)
        self.shift = nn.Parameter(torch.zeros(1, 1, features))

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        hidden = F.silu(torch.einsum("btf,efh->beth", x, self.up))
        each = torch.einsum("beth,ehf->betf", hidden, self.down)
        return x + torch.einsum("bte,betf->btf", gates, each) + self.shift


batch, length, features, hidden = (2, 6, 10, 14) if SMALL else (8, 500, 512, 1024)


def get_inputs():
    return [torch.randn(batch, length, features)]


def get_init_inputs():
    return [features, hidden]
