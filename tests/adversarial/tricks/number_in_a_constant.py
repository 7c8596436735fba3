# model: given_number.py
# row: beyond the table: a plain number as given
# caught by: input distributions
"""A number that is an input stands in the text."""

import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, slope):
        return nn.functional.leaky_relu(x, 0.25)
