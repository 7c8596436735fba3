import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Embeddings, a two-way LSTM, and log-probabilities of a tag for every word."""

    def __init__(self, words, features, hidden, tags):
        super().__init__()
        self.embed = nn.Embedding(words, features)
        self.lstm = nn.LSTM(features, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, tokens):
        y, _ = self.lstm(self.embed(tokens))
        return F.log_softmax(self.head(F.relu(y)), dim=-1)


batch, length, words, features, hidden, tags = (2, 6, 20, 8, 7, 5) if SMALL else (64, 256, 10000, 256, 256, 64)


def get_inputs():
    return [torch.randint(0, words, (batch, length))]


def get_init_inputs():
    return [words, features, hidden, tags]
