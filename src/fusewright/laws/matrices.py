"""Laws of matrix products: sums of them, one after another, of permuted rows, and with a diagonal matrix.

A product with a triangular or symmetric matrix stays with the library: cuBLAS offers nothing cheaper that PyTorch
exposes, and cutting the triangle into rectangles needs its size before it runs, which a graph for all sizes lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ir import sizes
from ..ir.graph import Ref
from .examples import after, of, of_two
from .law import HIDES_NONFINITE, NONFINITE_KIND, REASSOCIATES, Site, aten, law
from .patterns import LINEAR, MATMULS, MEANS, SUMS, Product, finished, product_at, reduction_at
from .sums import permutation


@law(
    "sum of a matrix product over its columns", REASSOCIATES, NONFINITE_KIND,
    at=SUMS | MEANS,
    examples=[
        after(lambda: nn.Linear(6, 5), lambda y: y.sum(dim=1), 4, 6),
        after(lambda: nn.Linear(6, 5, bias=False), lambda y: y.mean(dim=-1, keepdim=True), 4, 3, 6),
        after(lambda: nn.Linear(6, 5), lambda y: y.mean(), 4, 3, 6),
        of(lambda x, p: torch.matmul(x, p.t()).sum(1, keepdim=True), 4, 6, parameter=(5, 6)),
        of(lambda x, p: (x @ p).mean(2), 2, 4, 6, parameter=(6, 5)),
        of_two(lambda x, y: torch.bmm(x, y).sum(2), (2, 3, 4), (2, 4, 5)),
        of_two(lambda x, y: torch.bmm(x, y).sum(), (2, 3, 4), (2, 4, 5)),
        of_two(lambda x, y: torch.bmm(x, y).sum(0), (2, 3, 4), (2, 4, 5), applies=False),
        after(lambda: nn.Linear(6, 5), lambda y: (y, y.sum(dim=1)), 4, 6, applies=False),
        after(lambda: nn.Linear(6, 5), lambda y: y.amax(dim=1), 4, 6, applies=False),
    ],
)  # fmt: skip
def sum_over_columns(site: Site) -> Ref | None:
    """sum_j (x w^T + b)_ij = x_i * (sum_j w_j) + sum_j b_j: a matrix product becomes a dot product."""
    found = reduction_at(site)
    product = product_at(site, found.source) if found else None
    if found is None or product is None or not site.only_user(found.source) or len(found.shape) < 2:
        return None
    column = len(found.shape) - 1
    before = site.count(found.source) * site.hint(site.shape(product.left)[-1])
    if column not in found.dims or site.count(product.right) + site.count(product.left) >= before:
        return None
    total = dot(site, product)
    if product.bias is not None:
        total = site.add(total, site.sum(product.bias, [0], keepdim=True))
    if found.is_mean:
        total = site.divide(total, found.shape[column])
    return finished(site, total, found, [column])


@law(
    "sum of a matrix product over its rows", REASSOCIATES,
    at=SUMS | MEANS,
    examples=[
        after(lambda: nn.Linear(6, 5), lambda y: y.sum(dim=0), 4, 6),
        after(lambda: nn.Linear(6, 5), lambda y: y.mean(dim=(0, 1)), 4, 3, 6),
        after(lambda: nn.Linear(6, 5), lambda y: y.mean(), 4, 3, 6),
        of(lambda x, p: (x @ p).mean(1), 2, 4, 6, parameter=(6, 5)),
        of_two(lambda x, y: torch.bmm(x, y).mean((0, 1)), (2, 3, 4), (2, 4, 5)),
        of_two(lambda x, y: torch.mm(x, y).mean(0, keepdim=True), (3, 4), (4, 5)),
        of_two(lambda x, y: torch.bmm(x, y).sum(0), (2, 3, 4), (2, 4, 5), applies=False),
        after(lambda: nn.Linear(6, 5), lambda y: (y, y.sum(dim=0)), 4, 6, applies=False),
    ],
)  # fmt: skip
def sum_over_rows(site: Site) -> Ref | None:
    """sum_i (x w^T + b)_ij = (sum_i x_i) w_j + n b_j: one row instead of n."""
    found = reduction_at(site)
    product = product_at(site, found.source) if found else None
    if found is None or product is None or not site.only_user(found.source) or len(found.shape) < 2:
        return None
    column = len(found.shape) - 1
    rows = [d for d in found.dims if d < column and (d == column - 1 or not product.batched)]
    before = site.count(found.source) * site.hint(site.shape(product.left)[-1])
    if not rows or site.count(product.left) + before // site.hint(found.count(rows)) >= before:
        return None
    total = smaller_product(site, product, site.sum(product.left, rows, keepdim=True))
    if found.is_mean:
        total = site.divide(total, found.count(rows))
    if product.bias is not None:
        bias = site.cast(product.bias, site[total].dtype)
        total = site.add(total, bias if found.is_mean else site.mul(bias, found.count(rows)))
    return finished(site, total, found, rows)


def dot(site: Site, product: Product) -> Ref:
    """left times the sum of right's columns: (…, rows, 1)."""
    rank = len(site.shape(product.right))
    vector = site.sum(product.right, [0 if product.by_rows else rank - 1])
    if product.batched:
        *batch, inner = site.shape(vector)
        vector = site.reshape(vector, [*batch, 1, inner])
    left = site.cast(product.left, site[vector].dtype)
    return site.sum(site.mul(left, vector), [len(site.shape(left)) - 1], keepdim=True)


def smaller_product(site: Site, product: Product, left: Ref) -> Ref:
    """The same product with fewer rows, by the library."""
    dtype = site[left].dtype
    right = site.cast(product.right, dtype)
    columns = site.shape(right)[0 if product.by_rows else -1]
    shape = [*site.shape(left)[:-1], columns]
    if product.by_rows:
        return site.call(LINEAR, left, right, shape=shape, dtype=dtype)
    return site.call(aten.matmul.default, left, right, shape=shape, dtype=dtype)


# ---- one linear map after another


@law(
    "linear map of a linear map", REASSOCIATES, NONFINITE_KIND,
    at=[LINEAR],
    examples=[
        after(lambda: nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 3)), lambda y: y, 64, 4),
        after(lambda: nn.Sequential(nn.Linear(4, 32, bias=False), nn.Linear(32, 3)), torch.tanh, 16, 8, 4),
        after(lambda: nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 3, bias=False)), torch.tanh, 64, 4),
        after(lambda: nn.Sequential(nn.Linear(32, 4), nn.Linear(4, 32)), lambda y: y, 64, 32, applies=False),
        after(lambda: nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 3)), lambda y: y, 2, 4, applies=False),
        after(lambda: nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)), lambda y: y, 64, 4, applies=False),
    ],
)  # fmt: skip
def linear_of_linear(site: Site) -> Ref | None:
    """w2 (w1 x + b1) + b2 = (w2 w1) x + (w2 b1 + b2): the weights are multiplied, not every row."""
    outer = product_at(site, site.node)
    inner_node = site[outer.left] if outer else None
    if outer is None or inner_node is None or inner_node.target is not LINEAR or not site.only_user(inner_node):
        return None
    inner = product_at(site, inner_node)
    if inner is None or inner_node.dtype in (torch.float16, torch.bfloat16) or site.node.shape is None:
        return None
    columns, between = site.shape(outer.right)
    start = site.shape(inner.right)[1]
    rows = site.hint(sizes.product(site.node.shape[:-1]))
    before = rows * between * (start + columns)
    now = rows * start * columns + between * start * columns
    if 3 * now > 2 * before:
        return None
    dtype = site.node.dtype
    weight = site.call(aten.mm.default, outer.right, inner.right, shape=[columns, start], dtype=dtype)
    bias = outer.bias
    if inner.bias is not None:
        moved = site.sum(site.mul(outer.right, inner.bias), [1])
        bias = moved if bias is None else site.add(moved, bias)
    return site.call(LINEAR, inner.left, weight, bias, shape=site.node.shape)


# ---- rows in another order


class _Batched(nn.Module):
    """A linear map of rows whose first dimensions changed places, as attention modules have them."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__()
        self.order, self.map = tuple(order), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.map(x.permute(self.order))
        return y


@law(
    "linear map of permuted rows",
    at=[LINEAR],
    examples=[
        after(lambda: _Batched((1, 0, 2)), torch.tanh, 4, 3, 6),
        after(lambda: _Batched((2, 0, 1, 3)), lambda y: y.transpose(0, 1) * 2, 4, 3, 2, 6),
        after(lambda: _Batched((1, 0, 2)), lambda y: y, 4, 3, 6, applies=False),
        after(lambda: _Batched((0, 2, 1)), torch.tanh, 4, 6, 3, applies=False),
    ],
)  # fmt: skip
def linear_of_permuted(site: Site) -> Ref | None:
    """w permuted(x) + b = permuted(w x + b): rows are multiplied as they lie, and nothing is copied."""
    product = product_at(site, site.node)
    source = site[product.left] if product is not None else None
    order = permutation(source) if source is not None else None
    if source is None or order is None or order[-1] != len(order) - 1 or order == sorted(order):
        return None
    if any(user not in site.graph.index for user in site.users[site.node.name]):  # the caller gets it as it would lie
        return None
    rows = Ref(source.inputs[0])
    plain = site.again(site.node, [*site.shape(rows)[:-1], site.shape(Ref(site.node.name))[-1]], {"input": rows})
    return site.permute(plain, order)


# ---- diagonal matrices


def diagonal_of(site: Site, ref: Ref) -> Ref | None:
    """The vector (or batch of vectors) on the diagonal of a matrix that is built from it."""
    node = site[ref]
    if node.target is aten.diag.default:
        vector, on_diagonal = node.bound()["self"], node.bound()["diagonal"] == 0
        return vector if on_diagonal and len(site.shape(vector)) == 1 else None
    if node.target is aten.diag_embed.default:
        a = node.bound()
        last_two = {a["dim1"] % len(node.shape or (0,)), a["dim2"] % len(node.shape or (0,))}
        rank = len(node.shape or ())
        return a["self"] if a["offset"] == 0 and last_two == {rank - 2, rank - 1} else None
    return None


def diagonal_product(site: Site) -> tuple[Ref, Ref, int] | None:
    """(vector, matrix, the matrix's dimension that the vector runs along: -2 for diag(a) @ b, -1 for b @ diag(a))."""
    product = product_at(site, site.node)
    if product is None or product.bias is not None or product.by_rows:
        return None
    for diagonal, matrix, dim in ((product.left, product.right, -2), (product.right, product.left, -1)):
        vector = diagonal_of(site, diagonal)
        same_batch = len(site.shape(product.left)) == len(site.shape(product.right))
        if vector is not None and same_batch and site[vector].dtype == site.node.dtype:
            return vector, matrix, dim
    return None


def scaled_rows(site: Site, vector: Ref, matrix: Ref, dim: int) -> Ref:
    if dim == -2:
        vector = site.reshape(vector, [*site.shape(vector), 1])
    else:
        *batch, size = site.shape(vector)
        vector = site.reshape(vector, [*batch, 1, size])
    return site.mul(vector, matrix)


def _diag_examples() -> list[object]:
    return [
        of_two(lambda a, b: torch.diag(a) @ b, (5,), (5, 7)),
        of_two(lambda a, b: torch.diag_embed(a) @ b, (3, 5), (3, 5, 7)),
        of_two(lambda a, b: torch.mm(a, torch.diag(b)), (4, 5), (5,)),
        of_two(lambda a, b: torch.diag(a, 1) @ b, (5,), (6, 7), applies=False),
        of_two(lambda a, b: torch.tril(a) @ b, (5, 5), (5, 7), applies=False),
        of_two(lambda a, b: torch.diag(a) @ b, (5, 5), (5,), applies=False),
    ]


@law(
    "product with a diagonal matrix, of finite values", REASSOCIATES, HIDES_NONFINITE,
    at=MATMULS, examples=_diag_examples(),
)  # fmt: skip
def diagonal_of_finite(site: Site) -> Ref | None:
    """diag(a) @ b = a_i * b_ij: no product of matrices."""
    found = diagonal_product(site)
    return None if found is None else scaled_rows(site, *found)


@law("product with a diagonal matrix", REASSOCIATES, NONFINITE_KIND, at=MATMULS, examples=_diag_examples())
def diagonal(site: Site) -> Ref | None:
    """diag(a) @ b = a_i * b_ij + sum_k 0 * b_kj: the sum is 0, or NaN where the product of matrices is."""
    found = diagonal_product(site)
    if found is None:
        return None
    matrix, dim = found[1:]
    along = len(site.shape(matrix)) + dim
    nothing = site.sum(site.mul(matrix, 0.0), [along], keepdim=True)
    return site.add(scaled_rows(site, *found), site.cast(nothing, site.node.dtype))


ATTENTION = aten.scaled_dot_product_attention.default


@law(
    "attention with few key heads",
    at=[ATTENTION],
    examples=[
        of_two(lambda x, y: F.scaled_dot_product_attention(x, y, y.cos(), enable_gqa=True), (2, 6, 5, 4), (2, 3, 7, 4)),
        of_two(lambda x, y: F.scaled_dot_product_attention(x, y, y, is_causal=True, enable_gqa=True), (2, 4, 5, 4), (2, 1, 5, 4)),
        of_two(lambda x, y: F.scaled_dot_product_attention(x, y, y), (2, 4, 5, 4), (2, 4, 7, 4), applies=False),
        of_two(
            lambda x, y: F.scaled_dot_product_attention(x.half(), y.half(), y.half(), enable_gqa=True),
            *((2, 4, 5, 4), (2, 2, 7, 4)), applies=False,
        ),
    ],
)  # fmt: skip
def few_key_heads(site: Site) -> Ref | None:
    """Keys and values that several heads share, as those of each: in float32 PyTorch has no kernel that shares them."""
    a = site.bound
    heads = site.shape(a["query"])[-3] if len(site.shape(a["query"])) > 3 else None
    if not a.get("enable_gqa", False) or site.node.dtype is not torch.float32 or not isinstance(heads, int):
        return None
    changed: dict[str, Any] = {"enable_gqa": False}
    for name in ("key", "value"):
        *batch, few, rows, columns = site.shape(a[name])
        if not isinstance(few, int) or heads % few:
            return None
        if few != heads:
            shape = [*batch, heads, rows, columns]
            changed[name] = site.call(aten.repeat_interleave.self_int, a[name], heads // few, len(batch), shape=shape)
    return site.again(site.node, site.node.shape or (), changed)
