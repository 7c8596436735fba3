"""Losses: one value for each pair of elements or for each row, then a mean or a sum, each lowered by one function."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..ir import functions as fn
from ..ir import sizes
from ..ir.expr import Arg, Expr, both, differs, equal, product, quotient, select
from ..ir.graph import Node
from ..ir.prims import Iota
from .declare import float_result, lowers, value_of
from .lowering import Lowering
from .pointwise import log_sigmoid
from .reductions import SUMMED_IN_FLOAT, counts_in
from .registry import aten

NONE, MEAN, SUM = 0, 1, 2  # aten's numbers for `reduction`


def floats(build: Lowering, *values: Any) -> list[str] | None:
    """The arguments' primitives where fp32 holds them: a loss of halves is computed in fp32 and rounded once, where PyTorch rounds the
    differences, then each term, then the sum."""
    names = [value_of(build, value) for value in values]
    return names if all(build[name].dtype in SUMMED_IN_FLOAT for name in names) else None


def pairs(build: Lowering, *values: Any) -> list[str] | None:
    """The same, or all of them fp64: of losses that are sums of what is computed element by element."""
    names = [value_of(build, value) for value in values]
    return names if all(build[name].dtype is torch.float64 for name in names) else floats(build, *values)


def reduced(build: Lowering, node: Node, loss: str, reduction: int, count: str | None = None) -> str:
    """The loss as it is, its sum, or its mean (over `count` where that is not the number of elements), in the type of the result."""
    assert node.dtype is not None
    if reduction == NONE:
        return float_result(build, loss, node.dtype)
    dims, wide = range(len(build[loss].shape)), build[loss].dtype
    total = build.reduce("total", "Sum", loss, dims)
    if reduction == MEAN:
        total = build.pointwise("mean", quotient, [total, count or build.count(loss, dims, wide)], wide, cost=4)
    return build.drop(float_result(build, total, node.dtype), dims, False)


def above_zero(x: Expr) -> Expr:
    """max(0, x); NaN stays NaN."""
    return select(x < 0.0, 0.0, x)


# ---- of two tensors, element by element


@lowers("mse_loss", aten.mse_loss.default)
def mse_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    pair = pairs(build, a["self"], a["target"])
    if pair is None:
        return None
    wide = counts_in(build[pair[0]].dtype)
    return reduced(build, node, build.pointwise("square", lambda x, y: (x - y) * (x - y), pair, wide), a["reduction"])


@lowers("l1_loss", aten.l1_loss.default)
def l1_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    pair = pairs(build, a["self"], a["target"])
    if pair is None:
        return None
    wide = counts_in(build[pair[0]].dtype)
    return reduced(build, node, build.pointwise("distance", lambda x, y: fn.fabs(x - y), pair, wide), a["reduction"])


@lowers("smooth_l1_loss", aten.smooth_l1_loss.default)
def smooth_l1_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """d² / 2β below β, |d| − β/2 above."""
    pair = pairs(build, a["self"], a["target"])
    if pair is None or a["beta"] == 0:
        return None
    wide = counts_in(build[pair[0]].dtype)
    distance = build.pointwise("distance", lambda x, y: fn.fabs(x - y), pair, wide)
    beta = float(a["beta"])
    loss = build.pointwise("loss", lambda d: select(d < beta, 0.5 * d * d / beta, d - 0.5 * beta), [distance], wide, cost=4)
    return reduced(build, node, loss, a["reduction"])


@lowers("huber_loss", aten.huber_loss.default)
def huber_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """d² / 2 up to δ, δ·(|d| − δ/2) above."""
    pair = pairs(build, a["self"], a["target"])
    if pair is None:
        return None
    wide = counts_in(build[pair[0]].dtype)
    distance = build.pointwise("distance", lambda x, y: fn.fabs(x - y), pair, wide)
    delta = float(a["delta"])
    loss = build.pointwise("loss", lambda d: select(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta)), [distance], wide)
    return reduced(build, node, loss, a["reduction"])


@lowers("kl_div", aten.kl_div.default)
def kl_div(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """target · (log target − input), where 0 · log 0 is 0."""
    pair = pairs(build, a["self"], a["target"])
    if pair is None:
        return None
    wide = counts_in(build[pair[0]].dtype)

    def divergence(x: Expr, t: Expr) -> Expr:
        return fn.exp(t) * (t - x) if a["log_target"] else select(equal(t, 0.0), 0.0, t * fn.log(t)) - t * x

    return reduced(build, node, build.pointwise("loss", divergence, pair, wide, cost=12), a["reduction"])


@lowers("binary_cross_entropy", aten.binary_cross_entropy.default)
def binary_cross_entropy(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """−(t · log x + (1 − t) · log(1 − x)), logarithms not below −100, as PyTorch has it."""
    pair = pairs(build, a["self"], a["target"], *([a["weight"]] if a["weight"] is not None else []))
    if pair is None:
        return None
    wide = counts_in(build[pair[0]].dtype)

    def entropy(x: Expr, t: Expr, *weight: Expr) -> Expr:
        return product([(t - 1.0) * fn.fmax(fn.log1p(-x), -100.0) - t * fn.fmax(fn.log(x), -100.0), *weight])

    return reduced(build, node, build.pointwise("loss", entropy, pair, wide, cost=24), a["reduction"])


@lowers("binary_cross_entropy_with_logits", aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """(1 − t) · x − w · log σ(x), w = 1 + (positive weight − 1) · t."""
    given = [value for value in (a["weight"], a["pos_weight"]) if value is not None]
    names = pairs(build, a["self"], a["target"], *given)
    if names is None:
        return None
    wide = counts_in(build[names[0]].dtype)

    def entropy(x: Expr, t: Expr, *weights: Expr) -> Expr:
        own = log_sigmoid(x) if a["pos_weight"] is None else (1.0 + (weights[-1] - 1.0) * t) * log_sigmoid(x)
        return product([(1.0 - t) * x - own, *([weights[0]] if a["weight"] is not None else [])])

    return reduced(build, node, build.pointwise("loss", entropy, names, wide, cost=24), a["reduction"])


@lowers("margin_ranking_loss", aten.margin_ranking_loss.default)
def margin_ranking_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """max(0, margin − t · (x − y))."""
    names = pairs(build, a["input1"], a["input2"], a["target"])
    if names is None:
        return None
    wide = counts_in(build[names[0]].dtype)
    excess = build.pointwise("excess", lambda x, y, t: -t * (x - y) + float(a["margin"]), names, wide)
    return reduced(build, node, build.pointwise("loss", above_zero, [excess], wide), a["reduction"])


@lowers("hinge_embedding_loss", aten.hinge_embedding_loss.default)
def hinge_embedding_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """x where t is 1, max(0, margin − x) where it is −1; both where it is neither."""
    names = pairs(build, a["self"], a["target"])
    if names is None:
        return None
    wide = counts_in(build[names[0]].dtype)
    excess = build.pointwise("excess", lambda x: float(a["margin"]) - x, names[:1], wide)

    def hinge(x: Expr, t: Expr, excess: Expr) -> Expr:
        return select(equal(t, 1.0), 0.0, above_zero(excess)) + select(equal(t, -1.0), 0.0, x)

    return reduced(build, node, build.pointwise("loss", hinge, [*names, excess], wide), a["reduction"])


# ---- of rows


def distance(build: Lowering, x: str, y: str, p: float, eps: float, label: str) -> str | None:
    """The p-norm of x − y + ε along the last dimension, which stays with size 1."""
    difference = build.pointwise(f"{label}_difference", lambda x, y: x - y + float(eps), [x, y], torch.float32)
    last = [len(build[difference].shape) - 1]
    if p == 1:
        size = build.pointwise(f"{label}_abs", fn.fabs, [difference], torch.float32)
        return build.reduce(label, "Sum", size, last)
    if p != 2 or last[0] < 0:
        return None
    square = build.pointwise(f"{label}_square", lambda d: d * d, [difference], torch.float32)
    total = build.reduce(f"{label}_sum", "Sum", square, last)
    return build.pointwise(label, fn.sqrt, [total], torch.float32, cost=4)


@lowers("pairwise_distance", aten.pairwise_distance.default)
def pairwise_distance(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    pair = floats(build, a["x1"], a["x2"])
    found = distance(build, pair[0], pair[1], a["p"], a["eps"], "distance") if pair is not None else None
    if found is None or node.dtype is None:
        return None
    return build.drop(float_result(build, found, node.dtype), [len(build[found].shape) - 1], a["keepdim"])


@lowers("triplet_margin_loss", aten.triplet_margin_loss.default)
def triplet_margin_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """max(0, margin + |anchor − positive| − |anchor − negative|); swapped, the nearer of both to the negative counts."""
    names = floats(build, a["anchor"], a["positive"], a["negative"])
    if names is None or len({len(build[name].shape) for name in names}) > 1:
        return None
    anchor, positive, negative = names
    near = distance(build, anchor, positive, a["p"], a["eps"], "near")
    far = distance(build, anchor, negative, a["p"], a["eps"], "far")
    if near is None or far is None:
        return None
    if a["swap"]:
        across = distance(build, positive, negative, a["p"], a["eps"], "across")
        assert across is not None  # as the others
        far = build.pointwise("nearer", fn.smaller, [far, across], torch.float32)
    excess = build.pointwise("excess", lambda near, far: float(a["margin"]) + near - far, [near, far], torch.float32)
    loss = build.pointwise("loss", above_zero, [excess], torch.float32)
    return reduced(build, node, build.drop(loss, [len(build[loss].shape) - 1], False), a["reduction"])


@lowers("cosine_similarity", aten.cosine_similarity.default)
def cosine_similarity(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """Σ (x / |x|) · (y / |y|), where a norm is at least ε; divided before the product, so that nothing overflows.

    Both squares name both tensors, so that one look at the two serves both.
    """
    pair = floats(build, a["x1"], a["x2"])
    if pair is None or len(build[pair[0]].shape) != len(build[pair[1]].shape) or not build[pair[0]].shape or node.dtype is None:
        return None
    dims = [a["dim"] % len(build[pair[0]].shape)]
    lengths = []
    for i, label in enumerate(("x", "y")):
        square = build.pointwise(f"{label}_square", Arg(i) * Arg(i), pair, torch.float32)
        total = build.reduce(f"{label}_sum", "Sum", square, dims)
        length = build.pointwise(f"{label}_norm", lambda x: fn.larger(fn.sqrt(x), float(a["eps"])), [total], torch.float32, cost=4)
        lengths.append(length)
    cosine = build.pointwise("product", lambda x, y, xs, ys: (x / xs) * (y / ys), [*pair, *lengths], torch.float32, cost=8)
    return build.drop(float_result(build, build.reduce("", "Sum", cosine, dims), node.dtype), dims, False)


# ---- of class numbers


def chosen(build: Lowering, scores: str, target: str, dim: int, ignored: int) -> tuple[str, str]:
    """(the score of each row's class, whether the row counts): a sum in which only that class takes part.

    A class number that does not exist makes NaN: PyTorch raises an error there, which a kernel cannot.
    """
    shape = build[scores].shape
    classes = shape[dim]
    wide = build.reshape(target, [*shape[:dim], 1, *shape[dim + 1 :]], "class")
    which = build.add("number", Iota(dim), [], shape, torch.int64)
    here = build.pointwise("here", equal, [which, wide], torch.bool, torch.int64)
    own = build.pointwise("own", lambda here, x: select(here, x, 0.0), [here, scores], torch.float32)
    counts = build.pointwise("counts", lambda x: differs(x, ignored), [wide], torch.bool, torch.int64)
    exists = build.pointwise("exists", lambda x: both(x >= 0, x < classes), [wide], torch.bool, torch.int64)
    score = build.reduce("score", "Sum", own, [dim])
    return build.pointwise("valid_score", lambda exists, x: select(exists, x, math.nan), [exists, score], torch.float32), counts


def class_target(build: Lowering, scores: str, target: str) -> bool:
    """Targets are class numbers, one for each row of scores that fp32 holds, in a known number of classes."""
    shape, rank = build[scores].shape, len(build[scores].shape)
    fits = rank >= 2 and len(build[target].shape) == rank - 1 and build[target].dtype is torch.int64
    return fits and build[scores].dtype in SUMMED_IN_FLOAT and isinstance(shape[1], int)


def probable_target(build: Lowering, scores: str, target: str) -> bool:
    """Targets are a probability for each class, of scores that fp32 holds, in a known number of classes."""
    shape, given = build[scores].shape, build[target].shape
    same = len(shape) == len(given) >= 2 and all(map(sizes.same, shape, given))
    return same and {build[scores].dtype, build[target].dtype} <= set(SUMMED_IN_FLOAT) and isinstance(shape[1], int)


def class_loss(x: Expr, log_total: Expr, largest: Expr, *factors: Expr) -> Expr:
    """log Σ exp(x) − x of one class, weighed."""
    return product([log_total - (x - largest), *factors])


def cross_entropy_of_probabilities(build: Lowering, node: Node, scores: str, target: str, a: dict[str, Any]) -> str:
    """Σ t (log Σ exp(x) − x), smoothed and weighed class by class; a mean is over rows."""
    smoothing, classes = a["label_smoothing"], build[scores].shape[1]
    if smoothing != 0:
        own, share = float(1 - smoothing), smoothing / classes
        target = build.pointwise("smooth_target", lambda t: t * own + share, [target], torch.float32)
    largest = build.reduce("max", "LogSumExp", scores, [1], "pivot()")
    log_total = build.reduce("log_sum", "LogSumExp", scores, [1], "log_total()")
    weights = class_weights(build, scores, a["weight"])
    names = [scores, log_total, largest, target, *([weights] if weights is not None else [])]
    loss = build.reduce("row_loss", "Sum", build.pointwise("class_loss", class_loss, names, torch.float32), [1])
    return reduced(build, node, build.drop(loss, [1], False), a["reduction"])


def class_weights(build: Lowering, scores: str, weight: Any) -> str | None:
    """One weight for each class, in the shape of the scores; None where there are none."""
    if weight is None:
        return None
    shape = build[scores].shape
    return build.expand(build.reshape(value_of(build, weight), [shape[1], *[1] * (len(shape) - 2)]), shape)


def rows_reduced(build: Lowering, node: Node, loss: str, counts: str, reduction: int, weight: str | None = None) -> str:
    """Rows that do not count are 0; a mean is over the others, each as often as its class weighs."""
    loss = build.pointwise("loss", lambda counts, x: select(counts, x, 0.0), [counts, loss], torch.float32)
    loss, counts = build.drop(loss, [1], False), build.drop(counts, [1], False)
    if reduction != MEAN:
        return reduced(build, node, loss, reduction)
    if weight is None:
        number = build.pointwise("number_counted", Arg(0), [counts, loss], torch.float32)  # beside the loss, in one pass
    else:
        names = [counts, build.drop(weight, [1], False), loss]
        number = build.pointwise("weight_counted", lambda counts, weight, _: select(counts, weight, 0.0), names, torch.float32)
    every = range(len(build[loss].shape))
    return reduced(build, node, loss, MEAN, build.reduce("counted", "Sum", number, every))


@lowers("cross_entropy", aten.cross_entropy_loss.default)
def cross_entropy(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """log Σ exp(x) − x[class], the maximum taken out first; smoothed, partly the mean of that over all classes."""
    scores, target, smoothing = value_of(build, a["self"]), value_of(build, a["target"]), a["label_smoothing"]
    if probable_target(build, scores, target):
        return cross_entropy_of_probabilities(build, node, scores, target, a)
    if not class_target(build, scores, target):
        return None
    weights = class_weights(build, scores, a["weight"])
    score, counts = chosen(build, scores, target, 1, a["ignore_index"])
    largest = build.reduce("max", "LogSumExp", scores, [1], "pivot()")
    log_total = build.reduce("log_sum", "LogSumExp", scores, [1], "log_total()")
    loss = build.pointwise("row_loss", lambda x, log_total, pivot: log_total - (x - pivot), [score, log_total, largest], torch.float32)
    weight = chosen(build, weights, target, 1, a["ignore_index"])[0] if weights is not None else None
    if weight is not None:
        loss = build.pointwise("weighted_loss", lambda x, weight: x * weight, [loss, weight], torch.float32)
    if smoothing != 0:
        names = [scores, log_total, largest, *([weights] if weights is not None else [])]
        others = build.reduce("others", "Sum", build.pointwise("class_loss", class_loss, names, torch.float32), [1])
        own, share = float(1 - smoothing), smoothing / build[scores].shape[1]
        loss = build.pointwise("smooth_loss", lambda one, all_: own * one + share * all_, [loss, others], torch.float32)
    return rows_reduced(build, node, loss, counts, a["reduction"], weight)


@lowers("nll_loss", aten.nll_loss_nd.default)
def nll_loss(build: Lowering, node: Node, a: dict[str, Any]) -> str | None:
    """−x[class]."""
    scores, target = value_of(build, a["self"]), value_of(build, a["target"])
    if not class_target(build, scores, target):
        return None
    weights = class_weights(build, scores, a["weight"])
    score, counts = chosen(build, scores, target, 1, a["ignore_index"])
    loss = build.pointwise("row_loss", lambda x: -x, [score], torch.float32)
    weight = chosen(build, weights, target, 1, a["ignore_index"])[0] if weights is not None else None
    if weight is not None:
        loss = build.pointwise("weighted_loss", lambda x, weight: x * weight, [loss, weight], torch.float32)
    return rows_reduced(build, node, loss, counts, a["reduction"], weight)
