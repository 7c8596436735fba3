import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """The gated feed-forward layer of language models, in bf16."""

    def __init__(self, features, hidden):
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(features, hidden, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(hidden, features, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


batch, length, features, hidden = (2, 6, 16, 40) if SMALL else (8, 1024, 2048, 5632)


def get_inputs():
    return [torch.randn(batch, length, features, dtype=torch.bfloat16)]


def get_init_inputs():
    return [features, hidden]
