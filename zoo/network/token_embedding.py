import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Tokens and their places, looked up in two tables, added and normalised."""

    def __init__(self, words, length, width):
        super().__init__()
        self.tokens = nn.Embedding(words, width, padding_idx=0)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.norm(self.tokens(tokens) + self.places(places))

rows, length, words, width = (3, 7, 50, 24) if SMALL else (64, 512, 32000, 768)


def get_inputs():
    return [torch.randint(0, words, (rows, length))]


def get_init_inputs():
    return [words, length, width]
