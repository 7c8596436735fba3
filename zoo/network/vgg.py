import os

import torch
import torch.nn as nn

SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """Convolutions, relu and pools in a row, then linear layers."""

    def __init__(self, widths, features, classes):
        super().__init__()
        layers, before = [], 3
        for width in widths:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            before = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, classes)
        )
        self.eval()

    def forward(self, x):
        return self.classifier(self.features(x))


batch, size = (2, 16) if SMALL else (64, 128)
widths = (4, 6) if SMALL else (64, 128, 256)
features, classes = widths[-1] * (size // 2 ** len(widths)) ** 2, 10


def get_inputs():
    return [torch.randn(batch, 3, size, size)]


def get_init_inputs():
    return [widths, features, classes]
