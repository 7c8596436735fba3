# model: norm.py
# right as built, but does not follow: hooks
"""Mean and squared deviations of tiles, merged by Chan's formula."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ModelNew(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        groups = x.reshape(x.shape[0], self.norm.num_groups, -1)
        count, mean, m2 = 0, 0.0, 0.0
        for tile in groups.split(max(1, groups.shape[-1] // 8), dim=-1):
            n = tile.shape[-1]
            tile_mean = tile.mean(-1, keepdim=True)
            tile_m2 = (tile - tile_mean).square().sum(-1, keepdim=True)
            delta = tile_mean - mean
            m2 = m2 + tile_m2 + delta.square() * (count * n / (count + n))
            mean = mean + delta * (n / (count + n))
            count += n
        y = (groups - mean) * torch.rsqrt(m2 / count + self.norm.eps)
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return F.gelu(y.reshape(x.shape) * self.norm.weight.view(shape) + self.norm.bias.view(shape))
