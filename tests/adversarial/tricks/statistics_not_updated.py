# model: conv_batchnorm.py
# row: relies on default initial values (scale 1, shift 0)
# caught by: buffers
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        norm = self.norm
        if self.training:
            y = F.batch_norm(self.conv(x), None, None, norm.weight, norm.bias, True, norm.momentum, norm.eps)
        else:
            y = norm(self.conv(x))
        return F.silu(y)
