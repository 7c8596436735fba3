import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class DoubleConv(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(inp, out, 3, padding=1),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.net(x)


class Up(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.up = nn.ConvTranspose2d(inp, inp // 2, kernel_size=2, stride=2)
        self.conv = DoubleConv(inp, out)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        dy, dx = x2.size(2) - x1.size(2), x2.size(3) - x1.size(3)
        x1 = F.pad(x1, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class Model(nn.Module):
    """A U-Net of five levels, in training mode."""

    def __init__(self, channels, classes, width):
        super().__init__()
        widths = [width * 2**i for i in range(5)]
        self.inc = DoubleConv(channels, widths[0])
        self.downs = nn.ModuleList([nn.Sequential(nn.MaxPool2d(2), DoubleConv(a, b)) for a, b in zip(widths, widths[1:])])
        self.ups = nn.ModuleList([Up(b, a) for a, b in zip(reversed(widths[:-1]), reversed(widths[1:]))])
        self.outc = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        return self.outc(x)


batch, channels, size, width, classes = (2, 3, 32, 4, 2) if SMALL else (8, 3, 256, 64, 2)


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [channels, classes, width]
