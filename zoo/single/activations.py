import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Activations of the same input, added up; one of them is also returned alone."""

    def __init__(self, slope):
        super().__init__()
        self.prelu = nn.PReLU(init=slope)

    def forward(self, x):
        soft = F.softplus(x, beta=2.0) + F.softsign(x) + F.silu(x) + F.logsigmoid(x)
        hard = F.relu6(x) + F.hardtanh(x, -0.5, 2.0) + F.hardsigmoid(x) + F.hardswish(x)
        bent = F.leaky_relu(x, 0.1) + F.elu(x, 0.7) + F.selu(x) + F.celu(x, 1.5) + self.prelu(x)
        cut = F.hardshrink(x, 0.3) + F.softshrink(x, 0.3) + F.threshold(x, 0.1, 2.0) + F.tanhshrink(x)
        return soft + hard + bent + cut, bent


rows, columns = (19, 70) if SMALL else (8192, 4096)
slope = 0.2


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return [slope]
