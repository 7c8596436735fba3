import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Word and position embeddings, added and normalised; integers come in."""

    def __init__(self, words, length, features):
        super().__init__()
        self.words = nn.Embedding(words, features, padding_idx=0)
        self.places = nn.Parameter(torch.randn(length, features) * 0.02)
        self.norm = nn.LayerNorm(features)

    def forward(self, tokens):
        return self.norm(self.words(tokens) * 8.0 + self.places[: tokens.shape[1]])


batch, length, words, features = (3, 9, 40, 24) if SMALL else (64, 512, 32000, 768)


def get_inputs():
    return [torch.randint(0, words, (batch, length))]


def get_init_inputs():
    return [words, length, features]
