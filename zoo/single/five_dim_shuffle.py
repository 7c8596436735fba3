import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Patches of a video in and out of tokens, scaled on the way; a mean over time."""

    def forward(self, video):
        b, c, t, h, w = video.shape
        tokens = video.reshape(b, c, t // 2, 2, h // 4, 4, w // 4, 4)
        tokens = tokens.permute(0, 2, 4, 6, 3, 5, 7, 1).flatten(4).flatten(1, 3)
        tokens = tokens * torch.rsqrt(tokens.square().mean(-1, keepdim=True) + 1e-6)
        return tokens, video.mean(2).softmax(1)


shape = (2, 3, 4, 8, 12) if SMALL else (8, 3, 16, 224, 224)


def get_inputs():
    return [torch.randn(*shape)]


def get_init_inputs():
    return []
