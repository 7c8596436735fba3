import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Losses of class numbers with class weights, smoothing and a class that does not count."""

    def __init__(self, classes):
        super().__init__()
        self.register_buffer("weight", torch.rand(classes) + 0.5)
        self.scale = nn.Parameter(torch.rand(classes) + 0.5)

    def forward(self, x, target):
        scores = x * self.scale
        return (
            F.cross_entropy(scores, target, weight=self.weight, label_smoothing=0.1),
            F.cross_entropy(scores, target, ignore_index=2, reduction="sum", label_smoothing=0.2),
            F.cross_entropy(scores, target, weight=self.weight, ignore_index=1),
            F.cross_entropy(scores, target, weight=self.weight, reduction="none"),
            F.nll_loss(F.log_softmax(scores, 1), target, weight=self.weight),
        )


batch, classes = (9, 5) if SMALL else (16384, 1024)


def get_inputs():
    return [torch.randn(batch, classes), torch.randint(0, classes, (batch,))]


def get_init_inputs():
    return [classes]
