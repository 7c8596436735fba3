import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Two views of every sample: cosine similarities over a learned temperature, cross entropy in both directions."""

    def __init__(self, initial_temperature):
        super().__init__()
        self.log_scale = nn.Parameter(torch.log(torch.tensor(1.0 / initial_temperature)))

    def forward(self, images, texts):
        images = F.normalize(images, dim=-1)
        texts = F.normalize(texts, dim=-1)
        logits = self.log_scale.exp() * images @ texts.t()
        labels = torch.arange(images.shape[0], device=images.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


batch, embedding = (9, 20) if SMALL else (6000, 512)


def get_inputs():
    return [torch.randn(batch, embedding), torch.randn(batch, embedding)]


def get_init_inputs():
    return [0.07]
