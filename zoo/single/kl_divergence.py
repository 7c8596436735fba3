import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Kullback-Leibler divergence of two rows of probabilities."""

    def forward(self, predictions, targets):
        return F.kl_div(torch.log(predictions), targets, reduction="batchmean")


rows, columns = (21, 60) if SMALL else (16384, 4096)


def get_inputs():
    return [torch.rand(rows, columns).softmax(-1), torch.rand(rows, columns).softmax(-1)]


def get_init_inputs():
    return []
