import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Losses that need no logarithm of a path: Huber, triplet with a distance of one's own, soft margin, Poisson, cosine."""

    def __init__(self, delta, margin):
        super().__init__()
        self.huber = nn.HuberLoss(delta=delta)
        self.triplet = nn.TripletMarginWithDistanceLoss(
            distance_function=lambda x, y: 1.0 - F.cosine_similarity(x, y), margin=margin
        )
        self.poisson = nn.PoissonNLLLoss(log_input=True, full=False)
        self.cosine = nn.CosineEmbeddingLoss(margin=0.1)

    def forward(self, anchor, positive, negative, sign):
        near = self.huber(anchor, positive) + self.triplet(anchor, positive, negative)
        soft = F.soft_margin_loss(anchor, torch.sign(negative).detach())
        return near + soft + self.poisson(anchor, positive.abs()) + self.cosine(anchor, negative, sign)


batch, features = (7, 20) if SMALL else (8192, 1025)


def get_inputs():
    sign = torch.randint(0, 2, (batch,)) * 2 - 1
    return [torch.randn(batch, features) for _ in range(3)] + [sign]


def get_init_inputs():
    return [0.7, 0.5]
