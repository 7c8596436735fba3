import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Capsules routed by agreement in three rounds, and their lengths."""

    def __init__(self, capsules, dim_in, out, dim_out, rounds):
        super().__init__()
        self.W = nn.Parameter(torch.randn(1, capsules, out, dim_out, dim_in) * 0.1)
        self.rounds = rounds

    @staticmethod
    def squash(s, dim=-1):
        norm = torch.norm(s, dim=dim, keepdim=True)
        return norm / (1 + norm**2) * s

    def forward(self, x):
        votes = torch.matmul(self.W, x[:, :, None, :, None]).squeeze(-1)
        fixed = votes.detach()
        logits = torch.zeros(*votes.shape[:3], 1, device=x.device)
        for i in range(self.rounds):
            weights = F.softmax(logits, dim=2)
            if i == self.rounds - 1:
                v = self.squash((weights * votes).sum(dim=1, keepdim=True))
            else:
                v = self.squash((weights * fixed).sum(dim=1, keepdim=True))
                logits = logits + (fixed * v).sum(-1, keepdim=True)
        return v.squeeze(1), v.squeeze(1).norm(dim=-1)


batch, capsules, dim_in, out, dim_out = (2, 9, 4, 3, 5) if SMALL else (64, 1152, 8, 10, 16)


def get_inputs():
    return [torch.randn(batch, capsules, dim_in)]


def get_init_inputs():
    return [capsules, dim_in, out, dim_out, 3]
