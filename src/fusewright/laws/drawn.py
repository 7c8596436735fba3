"""Laws of tensors that are asked for their shape alone: random numbers for each element of one, and memory as it has it."""

from __future__ import annotations

import torch

from ..ir.graph import Node, Ref
from ..ir.index import contiguous
from .examples import of
from .law import Site, aten, law
from .patterns import in_memory

DRAWN = {
    aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.randint_like.low_dtype, aten.bernoulli.p,
    aten.uniform.default, aten.normal_functional.default, aten.exponential.default, aten.log_normal.default, aten.cauchy.default,
    aten.geometric.default,
}  # fmt: skip
LIKE = {aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default}
NEW = aten.new_empty.default


@law(
    "asked for its shape alone",
    at=[*DRAWN, NEW],
    examples=[
        of(lambda x: (lambda std: x + std * std.new_empty(4, 1).bernoulli_(0.5))((0.5 * x).exp()), 4, 5),
        of(lambda x: (lambda y: y + y * y.new_empty(y.shape[0], 1, 1).bernoulli_(0.5).div_(0.5))(x.transpose(1, 2).tanh()), 4, 5, 6),
        of(lambda x: (lambda std: x + std * torch.randn_like(std))((0.5 * x).exp()), 4, 5),
        of(lambda x: (lambda y: x.tanh() + y * torch.empty_like(y).uniform_(0.5, 1.5))(x.exp()), 4, 5),
        of(lambda x: (lambda y: x + y * torch.zeros_like(y).bernoulli_(0.5))(x.exp()), 4, 5),
        of(lambda x: x + x.new_empty(4, 1).bernoulli_(0.5), 4, 5, applies=False),
        of(lambda x: x + torch.rand_like(x.view(2, 10)).sum(), 4, 5, applies=False),
        of(lambda x: (lambda y: y + torch.randn_like(y))(x.exp().transpose(0, 1)), 4, 5, applies=False),
    ],
)  # fmt: skip
def asked_for_its_shape(site: Site) -> Ref | None:
    """randn_like(f(x)) needs the shape of f(x), not its values: f(x) need not be in memory for it."""
    node, own = site.node, site.bound["self"]
    asked = site[own]
    if asked.target == NEW or in_memory(site, own if asked.target not in LIKE else Ref(asked.inputs[0])):
        return None
    leaf = next((n for n in of_the_graph(site) if n.dtype == asked.dtype and n.name != asked.name), None)
    if leaf is None or asked.shape is None or node.shape is None:
        return None
    if node.target == NEW:
        return site.again(node, node.shape, {"self": Ref(leaf.name)})
    if not node.strides or node.strides[0] != contiguous(asked.shape):
        return None  # numbers are drawn in the order in which it would have lain
    memory = site.call(NEW, Ref(leaf.name), list(asked.shape), shape=asked.shape, dtype=asked.dtype)
    return site.again(node, node.shape, {"self": memory}, strides=(None,))


def of_the_graph(site: Site) -> list[Node]:
    """Tensors that there are whatever is computed, inputs first."""
    leaves = [n for n in site.graph.nodes if n.target in ("input", "parameter") and n.shape is not None]
    return sorted(leaves, key=lambda n: n.target != "input")
