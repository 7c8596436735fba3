import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Face embeddings against class centres: cosines, a margin taken from the true class, a scaled cross entropy."""

    def __init__(self, embedding, classes, scale, margin):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(classes, embedding))
        self.scale, self.margin = scale, margin

    def forward(self, faces, identity):
        cosine = F.linear(F.normalize(faces), F.normalize(self.centres))
        chosen = F.one_hot(identity, cosine.shape[1]).to(cosine.dtype)
        return F.cross_entropy(self.scale * (cosine - self.margin * chosen), identity)


batch, embedding, classes = (8, 12, 10) if SMALL else (4096, 256, 8000)


def get_inputs():
    return [torch.randn(batch, embedding), torch.randint(0, classes, (batch,))]


def get_init_inputs():
    return [embedding, classes, 30.0, 0.35]
