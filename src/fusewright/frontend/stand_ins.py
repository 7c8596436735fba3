"""PyTorch's functions that branch on the values of a tensor, or do at once what kernels would share, in a form that is one graph of
ordinary operators. In place while a model is captured."""

from __future__ import annotations

import ast
import contextlib
import copy
import linecache
import math
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._sympy.functions import FloorDiv

from ..ir import sizes
from .reads import is_installed

batch_norm_forward = _BatchNorm.forward
plain_instance_norm = F.instance_norm
plain_ctc_loss = F.ctc_loss
plain_bernoulli = torch.bernoulli
plain_data: Any = Tensor.data


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


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """With running statistics, which take in the averages over the batch; in evaluation it is a batch norm. PyTorch repeats them for
    each image and runs a batch norm over all, one operator that no kernel could join."""
    if running_mean is None or running_var is None:
        return plain_instance_norm(input, None, None, weight, bias, use_input_stats, momentum, eps)
    if not use_input_stats:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    result = plain_instance_norm(input, None, None, weight, bias, True, momentum, eps)
    variance, mean = torch.var_mean(input.detach().to(running_mean.dtype), list(range(2, input.dim())))
    running_mean.lerp_(mean.mean(0), momentum)
    running_var.lerp_(variance.mean(0), momentum)
    return result


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Each sequence's loss is divided by its length. PyTorch writes lengths that are numbers into a tensor's memory by itself, where
    a tracer's tensor has none."""
    of_numbers = reduction == "mean" and not isinstance(target_lengths, Tensor)
    of_each = "none" if of_numbers else reduction
    loss = plain_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, of_each, zero_infinity)
    if not of_numbers:
        return loss
    return (loss / torch.tensor([max(int(n), 1) for n in target_lengths], dtype=loss.dtype, device=loss.device)).mean()


def bernoulli(input: Tensor, *p: Any, **named: Any) -> Tensor:
    """With a probability that is a number it draws in the order of the dimensions; `bernoulli_`, the same call of a graph, in that of
    memory."""
    if not p and "p" not in named:
        return plain_bernoulli(input, **named)
    return torch.empty_like(input, memory_format=torch.contiguous_format).bernoulli_(*p, **named)


def detect_is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """PyTorch looks at the values of a mask, for a hint beside it. The mask alone says the same."""
    return is_causal is True


class _OfSizes(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, int)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, int)


class _Whole(metaclass=_OfSizes):
    """`int` of a quotient of sizes stays a size, where Python makes the example's number of it."""

    def __new__(cls, *given: Any, **named: Any) -> Any:
        if len(given) == 1 and isinstance(given[0], torch.SymFloat) and not named:
            node = given[0].node
            found = quotient_of(node.expr)
            if found is not None:
                hint = int(node.hint) if node.hint is not None else None
                return node.shape_env.create_symintnode(FloorDiv(*found), hint=hint)
        return int(*given, **named)


def quotient_of(value: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
    """(n, d) where `int(value)` is n // d: a quotient of whole numbers, of which any other operand is no rounded quotient itself. As long
    as n is below 2^52, a quotient of whole numbers is never rounded up to one."""
    kind = type(value).__name__
    if kind in ("IntTrueDiv", "FloatTrueDiv"):
        over, under = (exactly(part) for part in value.args)
        found = (over, under) if over is not None and under is not None else None
    elif value.is_Mul and len(value.args) == 2 and value.args[0].is_Float and sympy.Rational(value.args[0]).q <= 1024:
        factor, rest = sympy.Rational(value.args[0]), exactly(value.args[1])
        found = (factor.p * rest, sympy.Integer(factor.q)) if rest is not None else None
    else:
        rest = exactly(value)
        found = (rest, sympy.Integer(1)) if rest is not None else None
    if found is None or not found[0].is_nonnegative or not found[1].is_positive or not found[0].free_symbols:
        return None
    return found


def exactly(value: sympy.Expr) -> sympy.Expr | None:
    """The whole number that a value of a float is, whatever the sizes in it are."""
    kind = type(value).__name__
    if kind == "ToFloat":
        return value.args[0] if value.args[0].is_integer else None
    if value.is_Float or value.is_Integer:
        return sympy.Integer(int(value)) if float(value) == int(value) else None
    if value.is_Symbol or value.is_Add or value.is_Mul:
        return value if value.is_integer else None
    if kind in ("IntTrueDiv", "FloatTrueDiv"):
        over, under = (exactly(part) for part in value.args)
        whole = sizes.divide(over, under) if over is not None and under is not None and under.is_positive else None
        return None if whole is None else sympy.sympify(whole)
    return None


@contextlib.contextmanager
def sizes_whole(model: nn.Module) -> Iterator[None]:
    """The modules that the classes of the model's parts are in have an `int` that keeps quotients of sizes, where they only call theirs."""
    spaces = {cls.__module__ for part in model.modules() for cls in type(part).__mro__ if not is_installed(cls.__module__)}
    with contextlib.ExitStack() as stack:
        for name in spaces:
            space = vars(sys.modules[name]) if name in sys.modules else {}
            if "int" not in space and only_calls_int(space.get("__file__")):
                stack.enter_context(mock.patch.dict(space, {"int": _Whole}))
        yield


def only_calls_int(file: str | None) -> bool:
    """What this file does with `int` is to call it, to ask `isinstance` for it and to write it in signatures."""
    try:
        tree = ast.parse("".join(linecache.getlines(file or "")))
    except SyntaxError:
        return False
    good: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            asks = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass", "map")
            good += [node.func, *(node.args if asks else [])]
        elif isinstance(node, (ast.arg, ast.AnnAssign)):
            good.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            good.append(node.returns)
    roots = [root for root in good if isinstance(root, ast.expr) and not isinstance(root, ast.Attribute)]
    within = {id(part) for root in roots for part in ast.walk(root)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "int"]
    return bool(names) and all(id(name) in within for name in names)


def data(self: Tensor) -> Tensor:
    """The same memory without gradients, in a call that the tracer sees: `.data` of a tensor that it follows is lost to it."""
    return self.detach() if type(self) not in (Tensor, nn.Parameter) else plain_data.__get__(self)


@contextlib.contextmanager
def in_place() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if hasattr(transformer, "_detect_is_causal_mask"):
            stack.enter_context(mock.patch.object(transformer, "_detect_is_causal_mask", detect_is_causal_mask))
        for owner, name, stand_in in (
            (F, "gaussian_nll_loss", gaussian_nll_loss),
            (F, "instance_norm", instance_norm),
            (F, "ctc_loss", ctc_loss),
            (torch, "bernoulli", bernoulli),
            (_BatchNorm, "forward", batch_norm),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        stack.enter_context(mock.patch.object(Tensor, "data", property(data, plain_data.__set__)))
        yield


@contextlib.contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """What forward assigns to the model, or puts into a container there, while no real tensors run through it is none: afterwards all
    is what it was."""
    held = [(module, dict(vars(module)), dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    containers = [value for _, attributes, *_ in held for value in attributes.values() if isinstance(value, (list, dict, set))]
    inside = [(container, copy.copy(container)) for container in containers]
    try:
        yield
    finally:
        for container, before in inside:
            container.clear()
            container.extend(before) if isinstance(container, list) else container.update(before)
        for module, attributes, parameters, buffers in held:
            vars(module).clear()
            vars(module).update(attributes)
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
