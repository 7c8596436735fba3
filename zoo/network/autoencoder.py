import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A variational autoencoder without its noise: two heads, a reconstruction and both losses."""

    def __init__(self, features, hidden, latent):
        super().__init__()
        self.encode = nn.Linear(features, hidden)
        self.mean, self.log_variance = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, features), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.encode(x))
        mean, log_variance = self.mean(h), self.log_variance(h)
        result = self.decode(mean)
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), dim=1)
        return {"result": result, "loss": F.mse_loss(result, x) + divergence.mean(), "divergence": divergence}


batch, features, hidden, latent = (6, 20, 16, 5) if SMALL else (8192, 2048, 1024, 64)


def get_inputs():
    return [torch.rand(batch, features)]


def get_init_inputs():
    return [features, hidden, latent]
