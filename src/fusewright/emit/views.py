"""Views that PyTorch would copy on its way to them, though not as a whole, in a shorter way.

Attention modules join batch and heads, put tokens in front or behind, and take batch and heads apart again: step by step that is a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import sizes
from ..ir.access import axes_of, in_steps, place_in
from ..ir.graph import Dim, Graph
from ..ir.index import Axis
from ..ir.prims import Prim
from ..ir.pytext import shape_text


def shorter(views: Sequence[Prim], graph: Graph) -> str:
    """What follows the name of the last of `views`, each a view of the next, to have the first: the source cut, its dimensions split and
    permuted. Nothing where step by step nothing is copied either, or there is no such way."""
    *others, base = views
    plain = [in_steps(views[n:]) for n in range(len(others))]
    if all(plain) or not plain[0]:
        return ""
    cuts: list[str] = []
    order: list[Axis] = []
    for at, size in zip(place_in(views), base.shape, strict=True):
        along = sorted(at.terms.items(), key=lambda term: -graph.hint(term[1]))
        inner = [sizes.product(axis.size for axis, _ in along[n + 1 :]) for n in range(len(along))]
        if not all(sizes.same(factor, step) for (_, factor), step in zip(along, inner, strict=True)):
            return ""
        cuts.append(cut(at.offset, sizes.product(axis.size for axis, _ in along), size))
        order += [axis for axis, _ in along]
    axes = axes_of(others[0].shape)
    kept = [axis for axis in axes if not sizes.is_one(axis.size)]
    if len(order) != len(kept) or set(order) != set(kept):
        return ""
    first = f"[{', '.join(cuts)}]" if any(text != ":" for text in cuts) else ""
    split, permutation = shape_text(tuple(axis.size for axis in order)), shape_text(tuple(map(order.index, kept)))
    last = f".reshape({shape_text(others[0].shape)})" if len(kept) < len(axes) else ""
    return f"{first}.reshape({split}).permute({permutation}){last}"


def cut(start: Dim, length: Dim, size: Dim) -> str:
    whole = sizes.same(start, 0) and sizes.same(length, size)
    return ":" if whole else f"{sizes.text(start)}:{sizes.text(sizes.tidy(start + length))}"
