import math
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """NetVLAD with ghost clusters: soft assignment, batch norm, weighted residuals to the centres, two normalisations."""

    def __init__(self, clusters, ghosts, features):
        super().__init__()
        scale = 1 / math.sqrt(features)
        self.size, self.features = clusters, features
        self.assign = nn.Parameter(scale * torch.randn(features, clusters + ghosts))
        self.norm = nn.BatchNorm1d(clusters + ghosts)
        self.centres = nn.Parameter(scale * torch.randn(1, features, clusters))

    def forward(self, x):
        samples = x.size(1)
        flat = x.view(-1, self.features)
        a = self.norm(torch.matmul(flat, self.assign))
        a = F.softmax(a, dim=1)[:, : self.size].view(-1, samples, self.size)
        total = torch.sum(a, dim=1, keepdim=True) * self.centres
        vlad = torch.matmul(a.transpose(1, 2), x).transpose(1, 2) - total
        vlad = F.normalize(vlad)
        return F.normalize(vlad.reshape(-1, self.size * self.features))


batch, samples, features, clusters, ghosts = (3, 10, 12, 5, 2) if SMALL else (256, 100, 512, 32, 16)


def get_inputs():
    return [torch.randn(batch, samples, features)]


def get_init_inputs():
    return [clusters, ghosts, features]
