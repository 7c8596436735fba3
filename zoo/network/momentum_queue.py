import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """MoCo: a query against its key and a queue of old keys; the queue is a buffer that takes in the new keys, a counter moves."""

    def __init__(self, features, width, length, temperature=0.07):
        super().__init__()
        self.query = nn.Linear(features, width)
        self.key = nn.Linear(features, width)
        for p in self.key.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(width, length), dim=0))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.long))
        self.temperature = temperature

    def forward(self, a, b):
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(b), dim=1)
        positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        labels = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
        self.queue = torch.cat([k.T, self.queue[:, : -k.shape[0]]], dim=1)
        self.seen += k.shape[0]
        return F.cross_entropy(logits, labels), logits.argmax(1) == 0


batch, features, width, length = (4, 6, 5, 12) if SMALL else (512, 1024, 128, 16384)


def get_inputs():
    return [torch.randn(batch, features), torch.randn(batch, features)]


def get_init_inputs():
    return [features, width, length]
