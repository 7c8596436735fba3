import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A transposed convolution with output padding, softmax over channels, a bias, scale, sigmoid."""

    def __init__(
        self, in_channels, out_channels, kernel_size, stride, padding, output_padding, bias_shape, scaling_factor
    ):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, output_padding=output_padding
        )
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.scaling_factor = scaling_factor

    def forward(self, x):
        x = torch.softmax(self.conv_transpose(x), dim=1)
        return torch.sigmoid((x + self.bias) * self.scaling_factor)


batch, cin, cout, size = (2, 6, 9, 7) if SMALL else (64, 32, 64, 63)


def get_inputs():
    return [torch.rand(batch, cin, size, size)]


def get_init_inputs():
    return [cin, cout, 4, 2, 1, 1, (cout, 1, 1), 2.0]
