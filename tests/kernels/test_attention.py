"""Attention by one kernel in float32: over awkward shapes on the host, against float64, and what nvcc makes of it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from kernels.conv.chains import C, N
from kernels.conv.harness import launch, load
from kernels.conv.test_conv_host import check_sanitized
from kernels.conv.test_conv_nvcc import compiled
from torch import Tensor

from fusewright.codegen.mma.attention import Attention, AttentionTile, attention_kernel
from fusewright.codegen.mma.conv import Param, Pointwise
from fusewright.codegen.mma.conv_spec import VALUE, reading
from fusewright.ir.expr import Name, element, equal, select
from fusewright.ir.stmt import const

SCALED = Pointwise(VALUE * 0.25)
MASKED = Pointwise(
    select(equal(Name("kept"), 0.0), -math.inf, VALUE * 0.25),
    (const("float", "kept", element(Name("mask_ptr"), N * Name("columns") + C)),),
    (*reading("float", "mask_ptr"), Param("int", "columns")),
)
CAUSAL = Pointwise(select(C <= N, VALUE * 0.25, -math.inf))
RELU = Pointwise(select(VALUE < 0.0, 0.0, VALUE) * 0.1)


def steps_of(name: str, x: Tensor) -> dict[str, int]:
    *batch, row, column = x.stride()
    return {f"{name}_z{d}": step for d, step in enumerate(batch)} | {f"{name}_at": 0, f"{name}_row": row, f"{name}_column": column}


def attended(
    q: Tensor, k: Tensor, v: Tensor, body: Pointwise, out: Tensor | None = None, tile: AttentionTile | None = None, **more: object
) -> Tensor:
    """By the kernel, on the tensors as they lie."""
    mask = more.pop("mask", None)
    depth, width = q.shape[-1], v.shape[-1]
    most = more.pop("most", (depth, width))
    attention = Attention(*most, q.ndim - 2, **more)  # type: ignore[arg-type, misc]
    text = attention_kernel("k", attention, body, tile=tile)
    out = torch.full((*q.shape[:-1], v.shape[-1]), float("nan")) if out is None else out
    values: dict[str, Tensor | int] = {"q": q, "k": k, "v": v, "out": out, "queries": q.shape[-2], "keys": k.shape[-2]}
    values |= {"depth": depth, "width": width}
    values |= {key: step for name in ("q", "k", "v", "out") for key, step in steps_of(name, values[name]).items()}  # type: ignore[arg-type]
    values |= {f"batch{d}": size for d, size in enumerate(q.shape[:-2])}
    values |= {"mask_ptr": mask, "columns": mask.shape[-1]} if isinstance(mask, Tensor) else {}
    launch(load(text), text, **values)
    return out


def exact(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    """Written out, in another type."""
    scores = q.to(dtype) @ k.to(dtype).mT * 0.25
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -torch.inf)
    return torch.softmax(scores, -1) @ v.to(dtype)


SHAPES = {  # batch, queries, keys, depth, width
    "whole tiles": ((2,), 128, 64, 32, 32),
    "one query and key": ((1,), 1, 1, 16, 8),
    "odd sizes": ((3,), 37, 45, 19, 21),
    "a depth of 1 and a width of 1": ((2,), 9, 40, 1, 1),
    "no batch": ((), 70, 33, 24, 40),
    "heads in a batch": ((2, 3), 65, 31, 8, 12),
    "three dimensions of a batch": ((2, 1, 2), 17, 70, 20, 4),
    "deep and wide": ((1,), 33, 66, 128, 128),
    "widths that differ": ((2,), 40, 50, 100, 60),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda name: name.replace(" ", "-"))
def test_shapes(shape: str) -> None:
    """No worse than twice the error of float32 written out."""
    batch, queries, keys, depth, width = SHAPES[shape]
    q, k, v = torch.randn(*batch, queries, depth), torch.randn(*batch, keys, depth), torch.randn(*batch, keys, width)
    right, plain = exact(q, k, v), exact(q, k, v, dtype=torch.float32)
    ours, theirs = ((found.double() - right).abs().max() for found in (attended(q, k, v, SCALED), plain))
    assert ours <= 2 * theirs + 1e-7


@pytest.mark.parametrize("tile", [AttentionTile(1, 3), AttentionTile(2, 2)], ids=str)
@pytest.mark.parametrize("signs", ["both", "one"])
@pytest.mark.parametrize("depth", [64, 128])
def test_as_exact_as_plain_arithmetic(depth: int, signs: str, tile: AttentionTile) -> None:
    """Though the tensor cores cut off: by far the most where all have one sign. Against sums of one number after the other."""
    q, k, v = torch.randn(1, 32, depth), torch.randn(1, 300, depth), torch.randn(1, 300, 48)
    if signs == "one":
        q, k, v = q.abs(), k.abs(), v.abs()
    right = exact(q, k, v)
    chain = in_order(torch.softmax(in_order(q, k.mT) * 0.25, -1), v)
    ours, theirs = ((found.double() - right).abs() for found in (attended(q, k, v, SCALED, tile=tile), chain))
    assert ours.max() < 2 * theirs.max()
    assert ours.square().mean() < (2 * theirs.square().mean().sqrt()) ** 2


def in_order(a: Tensor, b: Tensor) -> Tensor:
    """The product of two batches of matrices, one number after the other, each time rounded."""
    sum_ = torch.zeros(*a.shape[:-1], b.shape[-1])
    for j in range(a.shape[-1]):
        sum_ = (sum_.double() + a[..., j, None].double() * b[..., j, None, :].double()).float()
    return sum_


@pytest.mark.parametrize(("depth", "width"), [(32, 40), (24, 36), (17, 21), (3, 2)])
def test_sizes_that_vary(depth: int, width: int) -> None:
    """Depth and width are known when the kernel is launched, up to what it was made for."""
    q, k, v = torch.randn(2, 40, depth), torch.randn(2, 50, depth), torch.randn(2, 50, width)
    found = attended(q, k, v, SCALED, most=(32, 40), depth_varies=True, width_varies=True)
    torch.testing.assert_close(found.double(), exact(q, k, v), rtol=1e-5, atol=1e-6)


def test_large_scores() -> None:
    """Of which a maximum has to be subtracted, and which grow from block to block of keys."""
    q, k, v = torch.randn(2, 40, 16) * 20, torch.randn(2, 150, 16) * torch.linspace(0.1, 20, 150)[:, None], torch.randn(2, 150, 16)
    right, plain = exact(q, k, v), exact(q, k, v, dtype=torch.float32)
    ours, theirs = ((found.double() - right).abs().max() for found in (attended(q, k, v, SCALED), plain))
    assert ours <= 2 * theirs


def test_as_they_lie() -> None:
    """Slices of one projection, permuted; keys that lie transposed; values one apart in memory; a result that is read permuted."""
    projected = torch.randn(2, 50, 3, 4, 16)
    q, k, v = projected.permute(2, 0, 3, 1, 4)
    out = torch.full((2, 50, 4, 16), float("nan")).transpose(1, 2)
    torch.testing.assert_close(attended(q, k, v, SCALED, out).double(), exact(q, k, v), rtol=1e-5, atol=1e-6)
    transposed = torch.randn(2, 4, 16, 45).mT
    found = attended(q, transposed, v[:, :, :45], SCALED).double()
    torch.testing.assert_close(found, exact(q, transposed, v[:, :, :45]), rtol=1e-5, atol=1e-6)
    apart = torch.randn(2, 4, 50, 32)[..., ::2]
    torch.testing.assert_close(attended(q, k, apart, SCALED).double(), exact(q, k, apart), rtol=1e-5, atol=1e-6)
    off = torch.randn(2 * 4 * 50 * 16 + 1)[1:].view(2, 4, 50, 16)
    torch.testing.assert_close(attended(q, k, off, SCALED).double(), exact(q, k, off), rtol=1e-5, atol=1e-6)
    one = torch.randn(1, 1, 50, 16).expand(2, 4, 50, 16)
    torch.testing.assert_close(attended(q, one, one, SCALED).double(), exact(q, one, one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [AttentionTile(1, 3), AttentionTile(2, 2)], ids=str)
def test_masks(tile: AttentionTile) -> None:
    """What is masked counts for nothing, also where whole blocks of keys are; a row of which nothing is left is NaN."""
    q, k, v = torch.randn(2, 70, 24), torch.randn(2, 100, 24), torch.randn(2, 100, 24)
    mask = (torch.rand(70, 100) < 0.3).float()
    mask[:, :40] = 0
    mask[5] = 0
    mask[6, 40:] = 1
    mask[7, :99], mask[7, 99] = 0, 1
    found = attended(q, k, v, MASKED, tile=tile, mask=mask)
    torch.testing.assert_close(found.double(), exact(q, k, v, mask), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert found[:, 5].isnan().all()
    torch.testing.assert_close(found[:, 7], v[:, 99], rtol=2.0**-21, atol=0.0)  # of one key alone
    safe = attended(q, k, v, MASKED, tile=tile, mask=mask, safe=True)
    assert not safe[:, 5].any() and torch.equal(safe[:, 6:], found[:, 6:])


@pytest.mark.parametrize("tile", [AttentionTile(1, 3), AttentionTile(2, 2)], ids=str)
def test_keys_that_a_mask_leaves_out(tile: AttentionTile) -> None:
    """Nothing is computed of them, but a value that is not finite spoils every row, times a weight of 0."""
    q, k, v = torch.randn(3, 150, 24), torch.randn(3, 150, 24), torch.randn(3, 150, 20)
    mask = torch.ones(150, 150).tril()
    mask[70:80, :96], mask[100] = 0, 0
    v[1, 140, 3] = torch.inf
    k[2, 149] = torch.nan
    right = exact(q, k, v, mask)
    for leaves_out in (True, False):
        found = attended(q, k, v, MASKED, tile=tile, mask=mask, leaves_out=leaves_out)
        torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert right[1, :, 3].isnan()[:139].all() and right[2, 140].isfinite().all()


@pytest.mark.parametrize(("queries", "keys"), [(150, 150), (40, 150), (150, 40)])
def test_blocks_behind_the_query_are_left_out(queries: int, keys: int) -> None:
    q, k, v = torch.randn(2, queries, 16), torch.randn(2, keys, 16), torch.randn(2, keys, 16)
    right = exact(q, k, v, torch.ones(queries, keys).tril())
    for causal in (True, False):
        torch.testing.assert_close(attended(q, k, v, CAUSAL, causal=causal).double(), right, rtol=1e-5, atol=1e-6)


def test_without_softmax() -> None:
    q, k, v = torch.randn(2, 70, 24), torch.randn(2, 45, 24), torch.randn(2, 45, 17)
    right = torch.relu(q.double() @ k.double().mT) * 0.1 @ v.double()
    torch.testing.assert_close(attended(q, k, v, RELU, softmax=False).double(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("softmax", [True, False])
@pytest.mark.parametrize("tile", [AttentionTile(1, 3), AttentionTile(2, 2)], ids=str)
def test_what_is_not_finite(tile: AttentionTile, softmax: bool) -> None:
    """An infinity stays one, and spoils nothing else: its two parts would be NaN. Numbers that round up to one stay numbers."""
    q, k, v = torch.randn(5, 40, 20), torch.randn(5, 70, 20), torch.rand(5, 70, 36) + 0.5
    q[0, 3, 5], q[0, 38, 0] = torch.inf, torch.nan
    k[1, 69, 2] = -torch.inf
    v[2, 4, 7], v[2, 64, 8], v[2, 5, 9], v[2, 6, 9] = torch.inf, torch.nan, torch.inf, -torch.inf
    v[3, :, 11] = 2e38  # of which sums of weights are no numbers, and means are
    q[4, 0, 0], q[4, 0, 1:], k[4, :, 0], k[4, 1, 0] = torch.finfo(torch.float32).max, 0.0, 0.0, 1.0
    if softmax:
        right = exact(q, k, v)
        found = attended(q, k, v, SCALED, tile=tile, softmax=True)
    else:
        right = torch.relu(q.double() @ k.double().mT) * 0.1 @ v.double()
        found = attended(q, k, v, RELU, tile=tile, softmax=False)
    right = right.float()
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize(("tile", "depth"), [(AttentionTile(1, 3), 20), (AttentionTile(2, 2), 21)], ids=str)
def test_sanitized(sanitize: str, tile: AttentionTile, depth: int) -> None:
    """By vectors and by single numbers, with ends of rows, of keys and of a mask."""
    text = attention_kernel("k", Attention(depth, depth, leaves_out=tile.tiles == 1), MASKED, tile=tile)
    floats = {"q": 2 * 67 * depth, "k": 2 * 45 * depth, "v": 2 * 45 * depth, "out": 2 * 67 * depth, "mask_ptr": 67 * 45}
    numbers = {f"{name}_{step}": value for name, rows in (("q", 67), ("k", 45), ("v", 45), ("out", 67))
               for step, value in (("at", 0), ("z0", rows * depth), ("row", depth), ("column", 1))}  # fmt: skip
    numbers |= {"columns": 45, "batch0": 2, "queries": 67, "keys": 45}
    check_sanitized(text, floats, numbers, sanitize)


@pytest.mark.sampled(3)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("leaves_out", [False, True])
@pytest.mark.parametrize("size", [32, 64, 96, 128])
def test_compiles_within_the_plan(size: int, leaves_out: bool, tmp_path: Path) -> None:
    """Two or three blocks on a multiprocessor. What is spilled is written before the loop and read behind it: a few places in memory."""
    found, _ = compiled(attention_kernel("k", Attention(size, size, 2, leaves_out=leaves_out), MASKED), tmp_path, "sm_90a")
    kernels = {name: what for name, what in found.items() if "kernelILi" in name}
    assert len(kernels) == 2
    assert all(registers <= 255 and spilled <= 80 for registers, spilled in kernels.values()), found
