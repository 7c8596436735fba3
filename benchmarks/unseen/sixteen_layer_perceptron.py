import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A perceptron of sixteen hidden layers of alternating widths, relu between them."""

    def __init__(self, in_size, hidden_sizes, out_size):
        super().__init__()
        layers = []
        width = in_size
        for hidden in hidden_sizes:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        layers.append(nn.Linear(width, out_size))
        self.network = nn.Sequential(*layers)

    def forward(self, x):
        return self.network(x)


batch, in_size, out_size = (5, 14, 6) if SMALL else (1000, 700, 300)
hidden_sizes = [10, 12] * 2 if SMALL else [1100, 900] * 8


def get_inputs():
    return [torch.rand(batch, in_size)]


def get_init_inputs():
    return [in_size, hidden_sizes, out_size]
