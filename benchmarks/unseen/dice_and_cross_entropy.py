import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Segmentation: a soft dice loss of every class and a cross entropy, weighted."""

    def __init__(self, classes, smooth, weight):
        super().__init__()
        self.classes, self.smooth, self.weight = classes, smooth, weight

    def forward(self, logits, labels):
        probabilities = logits.softmax(dim=1)
        truth = F.one_hot(labels, self.classes).permute(0, 3, 1, 2).to(logits.dtype)
        overlap = (probabilities * truth).sum(dim=(2, 3))
        sizes = probabilities.sum(dim=(2, 3)) + truth.sum(dim=(2, 3))
        dice = 1 - (2 * overlap + self.smooth) / (sizes + self.smooth)
        return self.weight * dice.mean() + (1 - self.weight) * F.cross_entropy(logits, labels)


batch, classes, h, w = (2, 4, 8, 9) if SMALL else (16, 12, 320, 320)


def get_inputs():
    return [torch.randn(batch, classes, h, w), torch.randint(0, classes, (batch, h, w))]


def get_init_inputs():
    return [classes, 1.0, 0.6]
