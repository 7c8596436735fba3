import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Gaussian negative log likelihoods, with a learned variance and one for each row; PyTorch looks at the values there."""

    def __init__(self, features):
        super().__init__()
        self.loss = nn.GaussianNLLLoss(full=True, eps=1e-3)
        self.spread = nn.Parameter(torch.randn(features) - 1.0)

    def forward(self, x, target):
        each = F.gaussian_nll_loss(x, target, x.square().mean(-1), reduction="none")
        return self.loss(x, target, F.relu(self.spread).expand_as(x)), each


batch, features = (6, 7) if SMALL else (16384, 4096)


def get_inputs():
    return [torch.randn(batch, features), torch.randn(batch, features)]


def get_init_inputs():
    return [features]
