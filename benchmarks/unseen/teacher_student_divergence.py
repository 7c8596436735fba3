import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Distillation: divergence of softened predictions from a teacher's, mixed with the labels' cross entropy."""

    def __init__(self, temperature, mix):
        super().__init__()
        self.t = temperature
        self.mix = mix

    def forward(self, student, teacher, labels):
        soft = F.kl_div(
            F.log_softmax(student / self.t, dim=-1), F.softmax(teacher / self.t, dim=-1), reduction="batchmean"
        )
        hard = F.cross_entropy(student, labels, label_smoothing=0.05)
        return self.mix * self.t**2 * soft + (1 - self.mix) * hard


batch, classes = (7, 15) if SMALL else (9000, 5000)


def get_inputs():
    return [torch.randn(batch, classes), torch.randn(batch, classes), torch.randint(0, classes, (batch,))]


def get_init_inputs():
    return [4.0, 0.7]
