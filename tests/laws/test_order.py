"""Laws together: what one does must not hide what another looks for, the end must be reached, results stay the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from laws import lawbook
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.ir.graph import Graph
from fusewright.ir.prims import Reduce
from fusewright.laws.examples import Chain, OfOne, OfTwo
from fusewright.laws.law import LAWS, Applied, each_once
from fusewright.laws.patterns import CONVOLUTIONS, PRODUCTS, TRANSPOSED
from fusewright.laws.rewrite import rewrite
from fusewright.ops.lower import lower
from fusewright.options import Options
from fusewright.schedule.planner import plan

aten = torch.ops.aten


def settled(model: nn.Module, *shapes: tuple[int, ...], options: Options | None = None) -> tuple[Graph, list[str]]:
    """The graph after all laws, checked against the one before, and the names of the laws."""
    before = lawbook.captured(model, shapes)
    after, applied = rewrite(before, options or Options())
    lawbook.assert_same_meaning(before, after, model)
    again, nothing = rewrite(after, options or Options())
    assert not nothing and again is after
    assert str(rewrite(before, options or Options())[0]) == str(after)
    return after, [step.law for step in applied]


def calls(graph: Graph, *targets: Any) -> int:
    return sum(node.target in targets for node in graph.nodes)


THROUGH: dict[str, Callable[[Tensor], Any]] = {
    "plain": lambda y: y.mean((2, 3)),
    "scaled": lambda y: (y * 2.0).mean((2, 3)),
    "scaled, shifted and divided": lambda y: ((y * 2 + 1) / 3).mean((2, 3), keepdim=True),
    "flattened": lambda y: y.flatten(2).mean(-1),
    "flattened and turned": lambda y: y.flatten(2).transpose(1, 2).sum(1),
    "pooled": lambda y: F.adaptive_avg_pool2d(y, 1).flatten(1),
    "one dimension after the other": lambda y: y.mean(3).mean(2),
    "channels first": lambda y: y.sum(1).sum((1, 2)),
    "all": lambda y: torch.tanh(y.mean()),
    "dropout that is off": lambda y: F.dropout(y, 0.3, training=False).mean((2, 3)),
    "a residual": lambda y: (y + torch.ones(())).sum((2, 3)),
}
CONVS = (lambda: nn.Conv2d(3, 8, 3, padding=1), lambda: nn.ConvTranspose2d(3, 8, 3, stride=2))


@pytest.mark.parametrize("how", THROUGH)
def test_no_law_hides_a_convolution_from_its_sum(how: str) -> None:
    """The bias law and the folding laws look at the same convolution; the sum must get it."""
    conv = CONVS[list(THROUGH).index(how) % 2]()
    after, laws = settled(Chain(conv, THROUGH[how]), (2, 3, 7, 6))
    assert calls(after, *CONVOLUTIONS, *TRANSPOSED) == 0, f"{laws}\n{after}"


def test_laws_that_come_last_are_tried_last() -> None:
    last = [law for law in LAWS if law.last]
    assert [law.name for law in last] == ["bias of a convolution joins what follows"]
    _, laws = settled(Chain(nn.Conv2d(3, 4, 3), lambda y: torch.relu(torch.relu(y))), (2, 3, 6, 6))
    assert laws == ["clamp of a clamp", "bias of a convolution joins what follows"]


def test_a_chain_of_products_of_which_one_number_is_left() -> None:
    """Linear, sum, then reductions over what has become one column."""

    def tail(y: Tensor) -> Tensor:
        y = y.sum(1, keepdim=True)
        y = y.max(1, keepdim=True)[0].mean(1, keepdim=True)
        return y.logsumexp(1, keepdim=True).logsumexp(1, keepdim=True)

    after, _ = settled(Chain(nn.Linear(6, 5), tail), (4, 6))
    assert calls(after, *PRODUCTS, aten.logsumexp.default, aten.max.dim, aten.mean.dim) == 0, str(after)


def test_matrix_product_divided_summed_and_scaled() -> None:
    model = OfOne(lambda x, w: (torch.matmul(x, w.t()) / 2).sum(1, keepdim=True) * 1.5, (5, 6))
    after, _ = settled(model, (4, 6))
    assert calls(after, *PRODUCTS) == 0
    assert calls(after, aten.mul.Tensor) == 2, "x * w, and one factor for both numbers"


def test_where_an_infinite_value_would_be_lost_the_product_stays() -> None:
    """sigmoid(Inf) is 1 where sigmoid(NaN) is NaN: the law that may turn one into the other waits for --assume-finite."""
    model = Chain(nn.Linear(6, 5), lambda y: torch.sigmoid(y.sum(1)))
    assert calls(settled(model, (4, 6))[0], *PRODUCTS) == 1
    model = Chain(nn.Linear(6, 5), lambda y: torch.sigmoid(y.sum(1)))
    assert calls(settled(model, (4, 6), options=Options(assume_finite=True))[0], *PRODUCTS) == 0


AFTER_POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda y: F.gelu(y).max(dim=2).values,
    "silu": lambda y: F.silu(y).amax(2),
    "absolute values": lambda y: F.max_pool1d(y.abs(), 2),
    "the negative of gelu": lambda y: (-F.gelu(y)).amin(2),
    "": lambda y: y.max(dim=2).values,
    "the lower side of gelu": lambda y: F.gelu(y).amin(2),
    "positions of gelu": lambda y: F.gelu(y).max(dim=2).indices.float(),
}


@pytest.mark.parametrize("how", AFTER_POOL)
def test_a_maximum_hands_on_what_lies_on_its_side(how: str) -> None:
    """gelu(-Inf) is NaN: of its values none is -Inf, which a maximum would lose. So the pool goes into the weights."""
    keeps = how in ("gelu", "silu", "absolute values", "the negative of gelu")
    model = Chain(nn.Linear(6, 16), lambda y: AFTER_POOL[how](F.avg_pool1d((y / 3).unsqueeze(1), 4)))
    before = lawbook.captured(model, [(16, 6)])
    after, laws = settled(model, (16, 6))
    assert ("average pool over a linear map's outputs" in laws) == keeps, f"{laws}\n{after}"
    lawbook.assert_keeps_nonfinite(before, model)


HANDWRITTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "layer norm": lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(((x - x.mean(-1, True)) ** 2).mean(-1, True) + 1e-5),
    "with a deviation": lambda x: (x - x.mean((1, 2), True)) / (x.std((1, 2), keepdim=True) + 1e-6),
    "batch norm and relu": lambda x: (lambda d: torch.relu(d * torch.rsqrt(d.pow(2).mean((0, 2), True) + 1)))(x - x.mean((0, 2), True)),
    "both returned": lambda x: torch.stack((x.mean(2), x.var(2))),
}  # fmt: skip


@pytest.mark.parametrize("how", HANDWRITTEN)
def test_a_norm_written_out_is_one_reduction(how: str) -> None:
    model = OfOne(HANDWRITTEN[how])
    after, laws = settled(model, (3, 4, 10))
    assert calls(after, aten.mean.dim) == 0, f"{laws}\n{after}"
    made = plan(lower(after))
    reduces = {kernel.reduced for kernel in made.kernels if kernel.is_reduce}
    kinds = {prim.op.accumulator for prim in made.lowered.prims.values() if isinstance(prim.op, Reduce)}
    assert len(reduces) == 1 and kinds == {"Moments"}


def test_folding_stops_where_a_kernel_reads_the_result_anyway() -> None:
    def tail(between: Callable[[Tensor], Tensor]) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), Chain(nn.Identity(), between), nn.Conv2d(4, 2, 3))

    assert calls(settled(tail(lambda y: y * 2 + 1), (2, 3, 12, 12))[0], aten.mul.Tensor, aten.add.Tensor) == 3
    _, laws = settled(tail(lambda y: torch.relu(y * 2 + 1)), (2, 3, 12, 12))
    assert "scale or shift of a layer's result" not in laws


def test_results_keep_their_own_memory() -> None:
    """What was a new tensor does not become the input, nor two results one."""
    for function in (lambda x: x.clone(), lambda x: x.sum(1), lambda x: x.clone().flatten(1), lambda x: x * 1.0):
        after, _ = settled(OfOne(function), (4, 1, 5))
        output = after[after.outputs[0].value.name]
        while output.target in (aten.view.default, aten.reshape.default):
            output = after[output.inputs[0]]
        assert not output.is_leaf, str(after)
    after, _ = settled(OfOne(lambda x: (lambda y: (y, torch.relu(y)))(torch.sigmoid(x))), (4, 5))
    assert after.outputs[0].value != after.outputs[1].value


def test_halves_are_summed_in_float() -> None:
    """65504 is the largest fp16 number; a sum of inputs passes it long before their mean does."""
    model = nn.Conv2d(3, 4, 3).half()
    graph = lawbook.capture(Chain(model, lambda y: y.mean((2, 3))), [torch.randn(2, 3, 8, 8).half()])
    after, applied = rewrite(graph)
    assert applied[0].law == "sum of a convolution over all positions"
    sums = [node for node in after.nodes if node.target is aten.sum.dim_IntList]
    assert sums and all(node.dtype is torch.float32 for node in sums)
    assert after[after.outputs[0].value.name].dtype is torch.float16


def test_a_long_chain_settles() -> None:
    def deep(x: Tensor) -> Tensor:
        for i in range(40):
            x = torch.tanh(torch.relu(torch.relu(x * 2 * 0.25)) + i)
        return x

    before = lawbook.captured(OfOne(deep), [(4, 5)])
    after, applied = rewrite(before)
    assert len(applied) >= 80 and len(after.nodes) <= len(before.nodes) - 80


def test_a_law_is_said_once_however_often_it_applies() -> None:
    """With the first places and how many more there are; of a graph without places, how often."""
    steps = [Applied("a", f"n{i}", f"m.py:{3 + i // 2} (block.{i})", "x = x.") for i in range(28)]
    one = [Applied("b", "n1", "m.py:9", "y = y."), Applied("c", "n2", "", "z = z.")]
    many, *others = each_once([*steps, *one, Applied("c", "n3", "", "z = z.")])
    assert str(many) == "a at m.py:3 (block.0), m.py:3 (block.1), m.py:4 (block.2) and 25 more (28 times): x = x."
    assert list(map(str, others)) == ["b at m.py:9: y = y.", "c (2 times): z = z."]

    def deep(x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(torch.relu(torch.relu(x)))
        return x

    after, applied = rewrite(lawbook.captured(OfOne(deep), [(4, 5)]))
    rules = plan(lower(after), applied).rules
    assert len(rules) == len({step.law for step in applied}) < len(applied)


def test_two_inputs() -> None:
    model = OfTwo(lambda a, b: torch.tanh(torch.diag(a) @ b))
    after, laws = settled(model, (5,), (5, 7), options=Options(assume_finite=True))
    assert laws == ["product with a diagonal matrix, of finite values"]
    assert calls(after, *PRODUCTS) == 0
