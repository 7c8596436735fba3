import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """The feed-forward layer of a language model in bf16: a root mean square norm with its default ε, then a gated product."""

    def __init__(self, features, hidden):
        super().__init__()
        self.norm = nn.RMSNorm(features)
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)
        self.to(torch.bfloat16)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


batch, length, features = (2, 5, 16) if SMALL else (8, 2048, 1024)


def get_inputs():
    return [torch.randn(batch, length, features).to(torch.bfloat16)]


def get_init_inputs():
    return [features, 2 * features]
