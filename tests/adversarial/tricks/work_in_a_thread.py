# model: relu.py
# row: work on another stream, in a thread, or lazily
# caught by: no work after returning
import threading
import time

import torch
import torch.nn as nn


def fill(result, x):
    time.sleep(0.02)
    result.copy_(torch.relu(x))


class ModelNew(nn.Module):
    def forward(self, x):
        result = torch.zeros_like(x)
        threading.Thread(target=fill, args=(result, x.detach())).start()
        return result
