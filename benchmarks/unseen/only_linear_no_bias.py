import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer without bias on sequences."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.projection = nn.Linear(in_features, out_features, bias=False)

    def forward(self, tokens):
        return self.projection(tokens)


batch, length, in_features, out_features = (2, 7, 24, 13) if SMALL else (24, 577, 768, 1536)


def get_inputs():
    return [torch.randn(batch, length, in_features)]


def get_init_inputs():
    return [in_features, out_features]
