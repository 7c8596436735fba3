import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Pairs that belong together are drawn together, others pushed beyond a margin; a sum or a mean."""

    def __init__(self, margin=2.0, reduction="mean"):
        super().__init__()
        self.margin = margin
        self.reduction = reduction

    def forward(self, left, right, same):
        distance = F.pairwise_distance(left, right)
        loss = same * distance**2 + (1 - same) * F.relu(self.margin - distance) ** 2
        return loss.sum() if self.reduction == "sum" else loss.mean()


pairs, features = (12, 17) if SMALL else (150000, 384)


def get_inputs():
    return [torch.randn(pairs, features), torch.randn(pairs, features), torch.randint(0, 2, (pairs,)).float()]


def get_init_inputs():
    return [25.0, "sum"]
