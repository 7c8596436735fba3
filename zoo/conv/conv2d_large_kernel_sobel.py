import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Gradients of an image by fixed kernels, their size and direction, blurred by a separable kernel of 11."""

    def __init__(self):
        super().__init__()
        sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("kernels", torch.stack([sobel, sobel.T]).unsqueeze(1))
        x = torch.arange(11) - 5.0
        g = torch.exp(-x.pow(2) / 8)
        self.register_buffer("gauss", (g / g.sum())[None, None])

    def forward(self, image):
        grey = 0.299 * image[:, 0:1] + 0.587 * image[:, 1:2] + 0.114 * image[:, 2:3]
        edges = F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), self.kernels)
        size = torch.sqrt(edges.pow(2).sum(1, keepdim=True) + 1e-12)
        angle = torch.atan2(edges[:, 1:], edges[:, :1])
        blurred = F.conv2d(
            F.conv2d(size, self.gauss.unsqueeze(-1), padding=(5, 0)), self.gauss.unsqueeze(-2), padding=(0, 5)
        )
        return blurred, angle, size > blurred


batch, height, width = (2, 14, 19) if SMALL else (32, 480, 641)


def get_inputs():
    return [torch.rand(batch, 3, height, width)]


def get_init_inputs():
    return []
