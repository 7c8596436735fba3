import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Features of a recommender: tables looked up, pairwise products of what was found, the upper triangle, an MLP, a bilinear form."""

    def __init__(self, rows, fields, features):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, features) for _ in range(fields))
        self.dense = nn.Sequential(nn.Linear(13, features), nn.ReLU())
        i, j = torch.triu_indices(fields + 1, fields + 1, 1)
        self.register_buffer("i", i)
        self.register_buffer("j", j)
        self.top = nn.Sequential(nn.Linear(i.numel() + features, 64), nn.ReLU(), nn.Linear(64, 1))
        self.form = nn.Bilinear(features, features, 1)

    def forward(self, numbers, classes):
        dense = self.dense(numbers)
        all_ = torch.stack([dense] + [t(classes[:, n]) for n, t in enumerate(self.tables)], dim=1)
        pairs = torch.bmm(all_, all_.transpose(1, 2))[:, self.i, self.j]
        score = self.top(torch.cat([dense, pairs], dim=1)) + self.form(dense, all_[:, 1])
        return torch.sigmoid(score).squeeze(1)


batch, rows, fields, features = (6, 30, 5, 8) if SMALL else (16384, 10000, 20, 32)


def get_inputs():
    return [torch.rand(batch, 13), torch.randint(0, rows, (batch, fields))]


def get_init_inputs():
    return [rows, fields, features]
