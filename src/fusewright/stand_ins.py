"""PyTorch's functions that branch on the values of a tensor, in a form that is one graph. In place while a model is captured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

batch_norm_forward = _BatchNorm.forward


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """A negative variance makes NaN, where PyTorch raises an error. What is clamped keeps its gradient, as in PyTorch."""
    var = var * torch.ones_like(input) if isinstance(var, float) else var
    var = var.unsqueeze(-1) if var.dim() < input.dim() else var
    var = torch.where(var < eps, torch.where(var < 0, math.nan, var + (eps - var).detach()), var)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def batch_norm(self: Any, x: Tensor) -> Tensor:
    """Without a momentum the running statistics are averages over all batches: the share of this one is 1 / their number."""
    if self.momentum is not None or not self.training or not self.track_running_stats or self.num_batches_tracked is None:
        return batch_norm_forward(self, x)
    self._check_input_dim(x)
    self.num_batches_tracked.add_(1)
    share = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
    variance, mean = torch.var_mean(x.detach().to(self.running_mean.dtype), [d for d in range(x.dim()) if d != 1])
    self.running_mean.lerp_(mean, share)
    self.running_var.lerp_(variance, share)
    return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    with mock.patch.object(F, "gaussian_nll_loss", gaussian_nll_loss), mock.patch.object(_BatchNorm, "forward", batch_norm):
        yield


@contextlib.contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """What forward assigns to the model while no real tensors run through it is none: afterwards all is what it was."""
    held = [(module, dict(vars(module)), dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, parameters, buffers in held:
            vars(module).clear()
            vars(module).update(attributes)
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
