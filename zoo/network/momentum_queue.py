import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Contrast with a memory: rows of one view against those of another and against older ones, kept in a buffer that moves on."""

    def __init__(self, features, width, length, temperature=0.07):
        super().__init__()
        self.student, self.teacher = nn.Linear(features, width), nn.Linear(features, width).requires_grad_(False)
        self.register_buffer("memory", F.normalize(torch.randn(length, width), dim=1))
        self.register_buffer("rows_seen", torch.zeros(1, dtype=torch.long))
        self.temperature = temperature

    def forward(self, one, other):
        mine = F.normalize(self.student(one), dim=1)
        with torch.no_grad():
            theirs = F.normalize(self.teacher(other), dim=1)
        own = (mine * theirs).sum(1, keepdim=True)
        scores = torch.hstack((own, mine @ self.memory.T)) / self.temperature
        loss = (scores.logsumexp(1) - scores[:, 0]).mean()
        self.memory = torch.vstack((theirs, self.memory[: -len(theirs)]))
        self.rows_seen += len(theirs)
        return loss, scores.argmax(1) == 0


batch, features, width, length = (4, 6, 5, 12) if SMALL else (512, 1024, 128, 16384)


def get_inputs():
    return [torch.randn(batch, features), torch.randn(batch, features)]


def get_init_inputs():
    return [features, width, length]
