import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Losses of pairs and triples with a margin."""

    def forward(self, x, y, sign):
        return (
            F.margin_ranking_loss(x, y, sign, margin=0.1),
            F.hinge_embedding_loss(x, sign, margin=0.7, reduction="none"),
            F.triplet_margin_loss(x, y, x.flip(0), margin=1.0, p=1, swap=True),
        )


batch, features = (6, 7) if SMALL else (8192, 2048)


def get_inputs():
    return [torch.randn(batch, features), torch.randn(batch, features), torch.randn(batch, features).sign()]


def get_init_inputs():
    return []
