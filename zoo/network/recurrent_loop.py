import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A plain recurrent network: a step of a Python loop for each of 64 places of a sequence."""

    def __init__(self, features, state, results):
        super().__init__()
        self.step = nn.Linear(features + state, state)
        self.read = nn.Linear(state, results)

    def forward(self, sequence, state):
        found = []
        for item in sequence.unbind(0):
            state = torch.tanh(self.step(torch.cat((item, state), -1)))
            found.append(self.read(state))
        return torch.stack(found)


steps = 64
batch, features, state, results = (3, 5, 8, 4) if SMALL else (256, 512, 512, 128)


def get_inputs():
    return [torch.rand(steps, batch, features), torch.rand(batch, state)]


def get_init_inputs():
    return [features, state, results]
