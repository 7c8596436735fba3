import torch
import torch.nn as nn


class Model(nn.Module):
    """Sums of the beginnings of rows; the file's own lengths are those of whole rows."""

    def forward(self, x, lengths):
        kept = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return (x * kept).sum(1)


def get_inputs():
    return [torch.randn(8, 64), torch.full((8,), 64)]


def get_init_inputs():
    return []
