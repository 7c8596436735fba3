import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Twelve leads: a dilated convolution, softsign, the largest response in time and a linear head."""

    def __init__(self, leads, width, classes):
        super().__init__()
        self.conv = nn.Conv1d(leads, width, 9, dilation=3)
        self.head = nn.Linear(width, classes)

    def forward(self, ecg):
        responses = F.softsign(self.conv(ecg))
        return self.head(torch.amax(responses, dim=-1))


batch, leads, width, classes, time = (3, 12, 8, 4, 60) if SMALL else (96, 12, 128, 27, 5000)


def get_inputs():
    return [torch.randn(batch, leads, time)]


def get_init_inputs():
    return [leads, width, classes]
