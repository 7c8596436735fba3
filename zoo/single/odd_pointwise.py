import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Pointwise functions that few models use, with broadcasting."""

    def __init__(self, weight=0.3):
        super().__init__()
        self.weight = weight

    def forward(self, x, y, m):
        a = torch.hypot(x, y).lerp(x, self.weight)
        b = torch.addcmul(a, x, y, value=0.5).nan_to_num_(nan=1.0, posinf=5.0)
        c = torch.addcdiv(b, x, y.abs() + 1, value=-2)
        d = torch.where(m > 0, torch.special.expit(c), torch.logaddexp(x, y)) + torch.sinc(x) + torch.asinh(y)
        return (
            d,
            torch.fmax(x, y).frac() + torch.floor_divide(x, 0.7),
            torch.logit(torch.sigmoid(x), eps=1e-4),
            x.clip(min=y),
        )


rows, columns = (9, 31) if SMALL else (3001, 5003)


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(columns), torch.randint(-1, 2, (rows, 1))]


def get_init_inputs():
    return []
