"""Laws of sums of products: einsum, products with one row or column, and products with something added to them.

What is left of them is a matrix product, whose epilogue our kernels or the library's compute, or a pointwise product and a
sum, which a kernel reads its operands once for.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..ir import sizes
from ..ir.graph import Dim, Ref
from .examples import after, of, of_two
from .law import REASSOCIATES, Site, aten, law
from .patterns import HALVES, LINEAR, MATMULS, is_float, product_at


@dataclass(frozen=True)
class Term:
    """A tensor, and what its dimensions are called."""

    ref: Ref
    letters: str


@law(
    "einsum is products and sums", REASSOCIATES,
    at=[aten.einsum.default],
    examples=[
        of_two(lambda x, y: torch.einsum("bqd,bkd->bqk", x, y), (2, 3, 4), (2, 5, 4)),
        of_two(lambda x, y: torch.einsum("bijl,lk->bijk", x, y).tanh(), (2, 3, 4, 5), (5, 6)),
        of_two(lambda x, y: torch.einsum("bijl,ik->bkjl", x, y), (2, 3, 4, 5), (3, 6)),
        of_two(lambda x, y: torch.einsum("bthd,bshd->bhts", x, y), (2, 3, 4, 5), (2, 6, 4, 5)),
        of_two(lambda x, y: torch.einsum("btf,efh->beth", x, y), (2, 3, 4), (5, 4, 6)),
        of_two(lambda x, y: torch.einsum("bn,bn->b", x, y), (3, 7), (3, 7)),
        of_two(lambda x, y: torch.einsum("i,j->ij", x, y), (3,), (7,)),
        of_two(lambda x, y: torch.einsum("bij,bjk->ik", x, y), (2, 3, 4), (2, 4, 5)),
        of_two(lambda x, y: torch.einsum("bij,k->bik", x, y), (2, 3, 4), (5,)),
        of_two(lambda x, y: torch.einsum("...ij,...jk", x, y), (2, 3, 4), (2, 4, 5)),
        of_two(lambda x, y: torch.einsum("bij,bjk,bkl->bil", x, y, x), (2, 3, 4), (2, 4, 3)),
        of_two(lambda x, y: torch.einsum("ki,kj->ji", x, y), (6, 3), (6, 4)),
        of(lambda x: torch.einsum("bij->bj", x) + 1, 2, 3, 4),
        of(lambda x: torch.einsum("ij->ji", x) * 2, 3, 4),
        of(lambda x: torch.einsum("bii->bi", x), 2, 4, 4, applies=False),
        of_two(lambda x, y: torch.einsum("ij,jk->ik", x, y), (3, 1), (4, 5), applies=False),
    ],
)  # fmt: skip
def einsum(site: Site) -> Ref | None:
    """sum_k a_ik b_kj is a matrix product, sum_k a_ik b_k a product and a sum."""
    tensors, path = site.bound["tensors"], site.bound["path"]
    if site.node.dtype is None or not all(site[ref].dtype == site.node.dtype for ref in tensors) or not is_float(site.node):
        return None
    parsed = read_equation(site, site.bound["equation"], tensors)
    if parsed is None:
        return None
    terms, out = parsed
    for i, j in steps_of(path, len(terms)):
        second, first = terms.pop(max(i, j)), terms.pop(min(i, j))
        wanted = {*out, *(letter for term in terms for letter in term.letters)}
        found = joined(site, first, second, wanted, out if not terms else "")
        terms.insert(len(terms) if path else 0, found)
    last = summed(site, terms[0], set(out))
    return permuted(site, last, out)


def read_equation(site: Site, equation: str, tensors: Sequence[Ref]) -> tuple[list[Term], str] | None:
    """The terms and the letters of the result. None where one letter stands twice in a term, or for sizes that differ."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    given = left.split(",")
    free = iter(letter for letter in string.ascii_letters if letter not in equation)
    hidden = [len(site.shape(ref)) - len(text.replace("...", "")) for text, ref in zip(given, tensors, strict=True)]
    dots = "".join(next(free) for _ in range(max(hidden)))
    terms = [
        Term(ref, text.replace("...", dots[len(dots) - count :])) for text, ref, count in zip(given, tensors, hidden, strict=True)
    ]
    if not arrow:
        once = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
        out = "..." * bool(dots) + "".join(once)
    out = out.replace("...", dots)
    extent: dict[str, Dim] = {}
    for term in terms:
        if len(set(term.letters)) < len(term.letters):
            return None
        for letter, size in zip(term.letters, site.shape(term.ref), strict=True):
            if not sizes.same(extent.setdefault(letter, size), size):
                return None
    return terms, out


def steps_of(path: Sequence[int] | None, count: int) -> Iterator[tuple[int, int]]:
    """Which two terms are joined at each step."""
    for step in range(count - 1):
        yield (path[2 * step], path[2 * step + 1]) if path else (0, 1)


def joined(site: Site, first: Term, second: Term, wanted: set[str], out: str) -> Term:
    """The product of two terms, summed over what neither the result nor another term wants."""
    first, second = summed(site, first, wanted | set(second.letters)), summed(site, second, wanted | set(first.letters))
    both = [letter for letter in first.letters if letter in second.letters]
    inner = "".join(letter for letter in both if letter not in wanted)
    batch = "".join(letter for letter in out or first.letters if letter in both and letter in wanted)
    rows = "".join(letter for letter in first.letters if letter not in both)
    columns = "".join(letter for letter in second.letters if letter not in both)
    order = out or batch + rows + columns
    if not inner or (site.node.dtype not in HALVES and not (rows and columns)):  # halves are to be rounded once, after the sum
        product = site.mul(aligned(site, first, order + inner), aligned(site, second, order + inner))
        return summed(site, Term(product, order + inner), set(order))
    between = shared_matrix(site, first, second, inner, order) or shared_matrix(site, second, first, inner, order)
    if not batch and between is not None:
        return between
    if columns and rows and order.endswith(rows):
        first, second, rows, columns = second, first, columns, rows
    return permuted_term(site, product_of(site, first, second, batch, rows, inner, columns), order)


def shared_matrix(site: Site, small: Term, large: Term, inner: str, order: str) -> Term | None:
    """A matrix times dimensions in the middle of a tensor, which its rows take the place of: nothing moves in memory."""
    before, _, behind = large.letters.partition(inner)
    rows = "".join(letter for letter in small.letters if letter not in inner)
    if inner not in large.letters or not (before and behind and rows) or order != before + rows + behind:
        return None
    extent = extents(site, small, large)
    matrix = matrix_of(site, small, "", rows, inner)
    shape = [extent[letter] for letter in before]
    many = site.reshape(large.ref, [*shape, merged(extent, inner), merged(extent, behind)])
    product = site.call(aten.matmul.default, matrix, many, shape=[*shape, merged(extent, rows), merged(extent, behind)])
    return Term(site.reshape(product, [extent[letter] for letter in order]), order)


def product_of(site: Site, left: Term, right: Term, batch: str, rows: str, inner: str, columns: str) -> Term:
    """The matrix product of two terms, of each of a batch."""
    extent = extents(site, left, right)
    lead = [extent[letter] for letter in batch]
    in_order = not batch and left.letters == rows + inner  # all dimensions but the last are rows: they may stay apart
    if in_order:
        lead = [extent[letter] for letter in rows[:-1]]
        first = site.reshape(left.ref, [*lead, extent[rows[-1]] if rows else 1, merged(extent, inner)])
    else:
        first = matrix_of(site, left, batch, rows, inner)
    second = matrix_of(site, right, batch, inner, columns)
    shape = [*lead, *(site.shape(first)[-2:-1]), merged(extent, columns)]
    made = site.call(aten.matmul.default, first, second, shape=shape)
    letters = batch + rows + columns
    return Term(site.reshape(made, [extent[letter] for letter in letters]), letters)


def matrix_of(site: Site, term: Term, batch: str, rows: str, columns: str) -> Ref:
    """The term as (batch…, rows, columns), read the other way round where it lies so."""
    extent = extents(site, term)
    lead = [extent[letter] for letter in batch]
    if term.letters == batch + columns + rows and rows and columns:
        transposed = site.reshape(term.ref, [*lead, merged(extent, columns), merged(extent, rows)])
        rank = len(lead)
        return site.permute(transposed, [*range(rank), rank + 1, rank])
    found = permuted(site, term, batch + rows + columns)
    return site.reshape(found, [*lead, merged(extent, rows), merged(extent, columns)])


def extents(site: Site, *terms: Term) -> dict[str, Dim]:
    return {letter: size for term in terms for letter, size in zip(term.letters, site.shape(term.ref), strict=True)}


def merged(extent: dict[str, Dim], letters: str) -> Dim:
    return sizes.tidy(sizes.product(tuple(extent[letter] for letter in letters)))


def summed(site: Site, term: Term, wanted: set[str]) -> Term:
    """The term without the dimensions that nobody wants."""
    gone = [d for d, letter in enumerate(term.letters) if letter not in wanted]
    if not gone:
        return term
    total = site.cast(site.sum(term.ref, gone), site.node.dtype)
    return Term(total, "".join(letter for letter in term.letters if letter in wanted))


def permuted(site: Site, term: Term, order: str) -> Ref:
    return site.permute(term.ref, [term.letters.index(letter) for letter in order])


def permuted_term(site: Site, term: Term, order: str) -> Term:
    return Term(permuted(site, term, order), order)


def aligned(site: Site, term: Term, order: str) -> Ref:
    """The term in this order of dimensions, those that it lacks of size 1."""
    extent = extents(site, term)
    here = permuted(site, term, "".join(letter for letter in order if letter in term.letters))
    return site.reshape(here, [extent.get(letter, 1) for letter in order])


@law(
    "bilinear form", REASSOCIATES,
    at=[aten.bilinear.default],
    examples=[
        of(lambda x, p: torch.nn.functional.bilinear(x.tanh(), x, p, p[:, 0, 0]), 2, 6, 4, parameter=(3, 4, 4)),
        of(lambda x, p: torch.nn.functional.bilinear(x, x, p), 6, 4, parameter=(1, 4, 4)),
        of(lambda x, p: torch.nn.functional.bilinear(x.half(), x.half(), p.half()), 6, 4, parameter=(1, 4, 4), applies=False),
    ],
)  # fmt: skip
def bilinear(site: Site) -> Ref | None:
    """b(x, y)_o = sum_j (sum_i x_i w_oij) y_j: a matrix product, and a sum of products."""
    a, shape = site.bound, site.node.shape
    if shape is None or site.node.dtype in HALVES or not is_float(site.node):
        return None
    lead = "".join(string.ascii_uppercase[: len(shape) - 1])
    equation = f"{lead}i,oij,{lead}j->{lead}o"
    form = site.call(aten.einsum.default, equation, [a["input1"], a["weight"], a["input2"]], shape=shape)
    return form if a["bias"] is None else site.add(form, a["bias"])


# ---- one row, one column


VECTORS = {aten.mv.default, aten.dot.default, aten.vdot.default}


@law(
    "product of a vector", REASSOCIATES,
    at={*MATMULS, LINEAR, *VECTORS},
    examples=[
        of_two(lambda x, y: torch.mv(x, y).relu(), (5, 7), (7,)),
        of_two(lambda x, y: x @ y, (2, 5, 7), (7,)),
        of_two(lambda x, y: x @ y, (7,), (7, 5)),
        of_two(lambda x, y: x @ y, (7,), (2, 7, 5)),
        of_two(torch.dot, (7,), (7,)),
        of_two(lambda x, y: torch.bmm(x, y.unsqueeze(-1)), (3, 5, 7), (3, 7)),
        of_two(lambda x, y: torch.bmm(y.unsqueeze(1), x), (3, 7, 5), (3, 7)),
        of(lambda x, p: (x @ p).tanh(), 4, 6, 7, parameter=(7, 1)),
        after(lambda: torch.nn.Linear(7, 1), torch.sigmoid, 5, 7),
        after(lambda: torch.nn.Linear(7, 4), torch.sigmoid, 1, 7),
        after(lambda: torch.nn.Linear(1, 4), torch.sigmoid, 5, 3, 1),
        of_two(lambda x, y: torch.bmm(x, y), (3, 5, 1), (3, 1, 7)),
        after(lambda: torch.nn.Linear(7, 4), torch.sigmoid, 5, 7, applies=False),
        of_two(lambda x, y: x @ y, (5, 7), (7, 3), applies=False),
    ],
)  # fmt: skip
def of_a_vector(site: Site) -> Ref | None:
    """sum_k a_ik b_k, and a_i b_j, need no product of matrices: what is larger is read once."""
    if site.node.dtype in HALVES or not is_float(site.node) or site.node.shape is None:
        return None
    a = site.bound
    if site.node.target in VECTORS:
        return dotted(site, a["self"], a["vec"] if "vec" in a else a["tensor" if "tensor" in a else "other"])
    product = product_at(site, site.node)
    if product is None:
        return None if site.node.target is LINEAR else of_vectors(site, a["self"], a["other"])
    left, right, shape = product.left, product.right, site.shape(product.right)
    depth, lead = site.shape(left)[-1], shape[:-2] if product.batched else ()
    columns = shape[0 if product.by_rows else -1]
    if sizes.is_one(depth):
        found = site.mul(left, site.reshape(right, [*lead, 1, columns] if lead else [columns]))
    elif sizes.is_one(columns):
        found = dotted(site, left, site.reshape(right, [*lead, 1, depth] if lead else [depth]), keepdim=True)
    elif not all(sizes.is_one(size) for size in site.shape(left)[len(lead) : -1]):
        return None
    elif product.by_rows:
        found = dotted(site, right, site.reshape(left, [depth]))
    else:
        found = dotted(site, right, site.reshape(left, [*lead, depth, 1]), -2)
    found = site.reshape(found, site.node.shape)
    return found if product.bias is None else site.add(found, product.bias)


def of_vectors(site: Site, left: Ref, right: Ref) -> Ref | None:
    """A product one of whose operands is a vector."""
    if len(site.shape(right)) == 1:
        return dotted(site, left, right)
    if len(site.shape(left)) == 1:
        return dotted(site, right, site.reshape(left, [*site.shape(left), 1]), -2)
    return None


def dotted(site: Site, matrix: Ref, vector: Ref, dim: int = -1, keepdim: bool = False) -> Ref:
    """The sum of their product over a dimension of the matrix."""
    return site.sum(site.mul(matrix, vector), [len(site.shape(matrix)) + dim], keepdim)


# ---- with something added


@law(
    "product with something added", REASSOCIATES,
    at=[aten.addmm.default, aten.baddbmm.default, aten.addmv.default, aten.addbmm.default, aten.addr.default],
    examples=[
        of_two(lambda x, y: torch.addmm(y, x, x, beta=0.5, alpha=2).relu(), (4, 4), (4, 4)),
        of(lambda x, p: torch.addmm(p, x, x.t()), 4, 5, parameter=(4,)),
        of_two(lambda x, y: torch.baddbmm(y, x, y, alpha=3.0), (2, 4, 4), (2, 4, 4)),
        of_two(lambda x, y: torch.addmv(y, x, y, beta=0.25), (4, 4), (4,)),
        of_two(lambda x, y: torch.addbmm(y, x, x), (3, 4, 4), (4, 4)),
        of_two(lambda x, y: torch.addr(y, x, x, alpha=0.5), (4,), (4, 4)),
        of_two(lambda x, y: torch.addmm(y, x, x, beta=0), (4, 4), (4, 4), applies=False),
    ],
)  # fmt: skip
def product_and_sum(site: Site) -> Ref | None:
    """beta c + alpha (a b): what is added and the factors belong to what follows the product."""
    a, node = site.bound, site.node
    whole = all(isinstance(a[name], (int, float)) for name in ("alpha", "beta"))
    if not whole or a["beta"] == 0 or node.dtype in HALVES or not is_float(node) or node.shape is None:
        return None
    *_, left, right = (value for value in a.values() if isinstance(value, Ref))
    if node.target is aten.addr.default:
        product = site.mul(site.reshape(left, [*site.shape(left), 1]), right)
    elif node.target is aten.addmv.default:
        product = site.call(aten.mv.default, left, right, shape=node.shape)
    elif node.target is aten.addbmm.default:
        shape = [site.shape(left)[0], *node.shape]
        product = site.sum(site.call(aten.bmm.default, left, right, shape=shape), [0])
    else:
        target = aten.mm.default if node.target is aten.addmm.default else aten.bmm.default
        product = site.call(target, left, right, shape=node.shape)
    return site.add(site.mul(product, a["alpha"]), site.mul(a["self"], a["beta"]))
