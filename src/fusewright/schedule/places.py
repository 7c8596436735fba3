"""Values that are needed at several places: neighbours, as in the steps of a difference scheme. Computed anew at each, a chain of such
steps would take several times as long with every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from ..ir import sizes
from ..ir.access import axes_of, inputs_at, tuple_key
from ..ir.graph import Dim
from ..ir.index import Coordinate
from ..ir.prims import Coordinates, Picked, Pointwise, Prim, Sampled

SAMPLED = 4  # instructions to read an element at a place that is computed


def needed_at_several_places(
    prims: dict[str, Prim], live: list[Prim], stored: Collection[str], most: float, hint: Callable[[Dim], int]
) -> frozenset[str]:
    """Pointwise values that are rather in memory: something that is made of them needs them at several places, and what all but the
    first of these take is more than `most` instructions. `live` is in order; `stored` are in memory anyway."""
    found: set[str] = set()
    cost: dict[str, int] = {}  # instructions for an element, from what is in memory
    rank = {prim.name: number for number, prim in enumerate(live)}
    for prim in live:
        if not prim.is_inline:
            continue
        while True:
            places = evaluated(prims, prim, found.union(stored))
            cost[prim.name] = sum(count * cost_of(prims[name]) for name, count in places.items())
            size = hint(sizes.product(prim.shape))
            dear = [
                name
                for name, count in places.items()
                if count > 1
                and isinstance(prims[name].op, Pointwise)
                and (count * min(1.0, size / max(1, hint(sizes.product(prims[name].shape)))) - 1) * cost[name] > most
            ]
            if not dear:
                break
            found.add(max(dear, key=rank.__getitem__))  # with the last one in memory, others may be needed at one place
    return frozenset(found)


def evaluated(prims: dict[str, Prim], root: Prim, stored: Collection[str]) -> Counter[str]:
    """At how many places each value is computed for an element of the root."""
    found: Counter[str] = Counter()
    seen: set[object] = set()
    stack: list[tuple[str, Coordinates]] = [(root.name, tuple(map(Coordinate.of, axes_of(root.shape))))]
    while stack:
        name, here = stack.pop()
        prim, key = prims[name], (name, tuple_key(here))
        computed = prim.is_inline and (name not in stored or prim is root)
        if computed and key not in seen:
            seen.add(key)
            found[name] += 1
            stack += inputs_at(prims, prim, here)
    return found


def cost_of(prim: Prim) -> int:
    return prim.op.cost if isinstance(prim.op, Pointwise) else SAMPLED if isinstance(prim.op, (Sampled, Picked)) else 0
