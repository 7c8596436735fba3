import os

import torch
import torch.nn as nn
import torch.nn.functional as F

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Maps of three sizes by dictionary: side convolutions, enlarged and added from the top down, smoothed, a pool on top."""

    def __init__(self, widths, out):
        super().__init__()
        self.inner = nn.ModuleDict({f"p{i}": nn.Conv2d(w, out, 1) for i, w in enumerate(widths)})
        self.outer = nn.ModuleDict({f"p{i}": nn.Conv2d(out, out, 3, padding=1) for i, _ in enumerate(widths)})

    def forward(self, *maps):
        top = None
        results = {}
        for i in reversed(range(len(maps))):
            side = self.inner[f"p{i}"](maps[i])
            top = side if top is None else side + F.interpolate(top, size=side.shape[-2:], mode="nearest")
            results[f"p{i}"] = self.outer[f"p{i}"](top)
        results["pool"] = F.max_pool2d(results[f"p{len(maps) - 1}"], 1, 2, 0)
        return results


batch, widths, out, size = (2, (4, 6, 8), 5, 13) if SMALL else (8, (128, 256, 512), 128, 100)


def get_inputs():
    return [torch.randn(batch, w, -(-size // 2**i), -(-size // 2**i) + 1) for i, w in enumerate(widths)]


def get_init_inputs():
    return [widths, out]
