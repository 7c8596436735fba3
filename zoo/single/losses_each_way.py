import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Losses that are sums, means, or left as they are; with weights, smoothing, and classes that do not count."""

    def __init__(self, classes):
        super().__init__()
        self.register_buffer("rarity", torch.linspace(0.5, 2.0, classes))
        self.smooth = nn.CrossEntropyLoss(weight=torch.linspace(1.0, 3.0, classes), label_smoothing=0.1, reduction="none", ignore_index=2)

    def forward(self, scores, labels, soft):
        log = F.log_softmax(scores, dim=1)
        picked = F.nll_loss(log, labels, weight=self.rarity, ignore_index=-100, reduction="sum")
        mixed = F.cross_entropy(scores, soft, reduction="mean", label_smoothing=0.05)
        apart = F.kl_div(log, soft.log(), log_target=True, reduction="batchmean")
        binary = F.binary_cross_entropy_with_logits(scores, soft, pos_weight=self.rarity, reduction="none").sum(-1)
        count = F.poisson_nll_loss(scores, soft, log_input=True, full=False, reduction="sum")
        near = F.huber_loss(scores, soft, delta=0.5, reduction="none").amax(dim=1)
        return picked, self.smooth(scores, labels), mixed, apart, binary, count, near


batch, classes = (9, 11) if SMALL else (65536, 256)


def get_inputs():
    return [torch.randn(batch, classes), torch.randint(0, classes, (batch,)), torch.rand(batch, classes).softmax(-1)]


def get_init_inputs():
    return [classes]
