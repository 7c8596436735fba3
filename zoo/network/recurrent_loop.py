import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A vanilla recurrent network, a step of the loop for each of 64 places of the sequence."""

    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.tanh = nn.Tanh()

    def forward(self, x, hidden):
        outputs = []
        for t in range(x.size(0)):
            combined = torch.cat((x[t], hidden), dim=1)
            hidden = self.tanh(self.i2h(combined))
            outputs.append(self.h2o(hidden))
        return torch.stack(outputs, dim=0)


steps = 64
batch, inp, hidden, out = (3, 5, 8, 4) if SMALL else (256, 512, 512, 128)


def get_inputs():
    return [torch.rand(steps, batch, inp), torch.rand(batch, hidden)]


def get_init_inputs():
    return [inp, hidden, out]
