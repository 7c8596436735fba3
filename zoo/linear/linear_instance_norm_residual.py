import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A linear layer, instance norm of each row as if it were an image, a second input added and multiplied."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.InstanceNorm2d(1)

    def forward(self, x, y):
        x = self.norm(self.linear(x).unsqueeze(1).unsqueeze(1)).squeeze(1).squeeze(1)
        return (x + y) * y


batch, in_features, out_features = (9, 20, 26) if SMALL else (4096, 1024, 4096)


def get_inputs():
    return [torch.rand(batch, in_features), torch.rand(batch, out_features)]


def get_init_inputs():
    return [in_features, out_features]
