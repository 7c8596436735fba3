import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Cross entropy of every pixel, with label smoothing, class weights and an ignored class."""

    def __init__(self, classes, smoothing):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(torch.linspace(0.5, 1.5, classes), ignore_index=1, label_smoothing=smoothing)

    def forward(self, logits, labels):
        return self.loss(logits, labels)


batch, classes, height, width = (2, 7, 9, 10) if SMALL else (16, 32, 256, 256)
smoothing = 0.1


def get_inputs():
    return [torch.randn(batch, classes, height, width), torch.randint(0, classes, (batch, height, width))]


def get_init_inputs():
    return [classes, smoothing]
