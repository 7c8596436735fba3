import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Sixteen electrodes: a temporal convolution, its power in windows, the logarithm, and dropout that is off."""

    def __init__(self, electrodes, kernels, window):
        super().__init__()
        self.temporal = nn.Conv1d(electrodes, kernels, kernel_size=15, padding=7)
        self.pool = nn.AvgPool1d(window, stride=window // 2)
        self.drop = nn.Dropout(0.5)
        self.eval()

    def forward(self, signals):
        power = self.pool(self.temporal(signals) ** 2)
        return self.drop(torch.log(torch.clamp(power, min=1e-6)))


batch, electrodes, kernels, window, length = (2, 16, 6, 6, 50) if SMALL else (128, 16, 48, 50, 9000)


def get_inputs():
    return [torch.randn(batch, electrodes, length)]


def get_init_inputs():
    return [electrodes, kernels, window]
