import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """A byte image: bits taken apart, integers divided, what fits compared, and the image as numbers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1), persistent=False)

    def forward(self, image, labels, shift: int):
        numbers = (image / 255 - self.mean) / self.std
        high = (image >> shift) & 0x0F
        low = image & 15
        mixed = (high ^ low) | 1
        wide = image.to(torch.int32) * 257 // 3 - 40
        rest = torch.remainder(wide, 7) + wide % -5
        same = (labels[:, None] == labels[None, :]) & ~torch.eye(labels.shape[0], dtype=torch.bool, device=labels.device)
        return numbers, mixed, rest, same, torch.fmod(wide, 11), image.float().mean((-2, -1)) > 127.5


batch, height, width = (3, 9, 14) if SMALL else (256, 224, 224)


def get_inputs():
    return [torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8), torch.randint(0, 10, (batch,)), 4]


def get_init_inputs():
    return []
