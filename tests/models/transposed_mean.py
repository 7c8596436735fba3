import torch
import torch.nn as nn


class Model(nn.Module):
    """The shape of the third founding model, small: transposed convolution, mean, bias, logsumexp, scaled sum."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, 3)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        x = self.conv(x).mean(dim=(2, 3), keepdim=True) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True).sum(dim=(2, 3)) * 10.0


def get_inputs():
    return [torch.rand(2, 3, 10, 12)]


def get_init_inputs():
    return [3, 6]
