import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Triplet margin loss."""

    def __init__(self, margin):
        super().__init__()
        self.loss = nn.TripletMarginLoss(margin=margin)

    def forward(self, anchor, positive, negative):
        return self.loss(anchor, positive, negative)


rows, features = (20, 48) if SMALL else (16384, 2048)
margin = 1.0


def get_inputs():
    return [torch.rand(rows, features), torch.rand(rows, features), torch.rand(rows, features)]


def get_init_inputs():
    return [margin]
