import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Numbers sorted into buckets, classes as rows of ones, counted and compared."""

    def __init__(self, buckets):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, buckets - 1))
        self.buckets = buckets

    def forward(self, x, labels):
        place = torch.bucketize(x, self.edges)
        share = F.one_hot(place, self.buckets).float().mean(0)
        hits = place == labels
        return (
            share,
            hits,
            F.one_hot(labels, num_classes=self.buckets) * 3,
            hits.float().mean(),
            torch.isfinite(x).all(),
        )


count, buckets = (60, 5) if SMALL else (1_000_000, 33)


def get_inputs():
    return [torch.randn(count), torch.randint(buckets, (count,))]


def get_init_inputs():
    return [buckets]
