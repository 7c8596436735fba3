import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A state-space layer in chunks, as in Mamba 2: segmented sums of decays, products within chunks, states handed on."""

    def __init__(self, batch, length, heads, head, state, chunk):
        super().__init__()
        assert length % chunk == 0
        self.chunk = chunk
        self.A = nn.Parameter(torch.randn(batch, length, heads) * 0.1 - 1)
        self.B = nn.Parameter(torch.randn(batch, length, heads, state))
        self.C = nn.Parameter(torch.randn(batch, length, heads, state))

    def segsum(self, x):
        n = x.size(-1)
        sums = torch.cumsum(x, dim=-1)
        difference = sums[..., :, None] - sums[..., None, :]
        mask = torch.tril(torch.ones(n, n, device=x.device, dtype=bool), diagonal=0)
        return difference.masked_fill(~mask, -torch.inf)

    def forward(self, x, initial=None):
        b, length, h, p = x.shape
        c = length // self.chunk
        x, B, C = (t.reshape(b, c, self.chunk, *t.shape[2:]) for t in (x, self.B, self.C))
        A = self.A.reshape(b, c, self.chunk, h).permute(0, 3, 1, 2)
        total = torch.cumsum(A, dim=-1)
        L = torch.exp(self.segsum(A))
        diagonal = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", C, B, L, x)
        decay = torch.exp(total[:, :, :, -1:] - total)
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", B, decay, x)
        if initial is None:
            initial = torch.zeros_like(states[:, :1])
        states = torch.cat([initial, states], dim=1)
        between = torch.exp(self.segsum(F.pad(total[:, :, :, -1], (1, 0))))
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        off = torch.einsum("bclhn,bchpn,bhcl->bclhp", C, states, torch.exp(total))
        return (diagonal + off).reshape(b, length, h, p)


sizes = (2, 8, 2, 4, 3, 4) if SMALL else (16, 512, 8, 64, 16, 64)


def get_inputs():
    return [torch.randn(*sizes[:4])]


def get_init_inputs():
    return list(sizes)
