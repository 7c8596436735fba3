import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A residual block of a diffusion model: time as sines, scale and shift by it, group norms, attention over places."""

    def __init__(self, channels, time, groups=8):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(time, 4 * time), nn.SiLU(), nn.Linear(4 * time, 2 * channels))
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(groups, channels) for _ in range(3))
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)
        self.size = time

    def sines(self, t):
        half = self.size // 2
        rates = torch.exp(torch.arange(half, device=t.device) * -(math.log(10000) / (half - 1)))
        angles = t[:, None].float() * rates[None, :]
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    def forward(self, x, t):
        scale, shift = self.time(self.sines(t))[:, :, None, None].chunk(2, dim=1)
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h) * (scale + 1) + shift)) + x
        b, c, height, width = h.shape
        q, k, v = self.qkv(self.norm3(h)).reshape(b, 3, c, height * width).unbind(1)
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) * c**-0.5, dim=-1)
        return h + self.out(torch.einsum("bij,bcj->bci", weights, v).reshape(b, c, height, width))


batch, channels, time, size = (2, 16, 8, 6) if SMALL else (16, 128, 64, 32)


def get_inputs():
    return [torch.randn(batch, channels, size, size), torch.randint(0, 1000, (batch,))]


def get_init_inputs():
    return [channels, time]
