"""What kernels are called: by the operators whose work they do."""

from __future__ import annotations

from ..ir.graph import Graph, Node
from ..ir.plan import Plan, operator_name, origins
from ..ops import registry


def name_kernels(made: Plan) -> None:
    """A kernel is called after the operators it replaces."""
    taken: set[str] = set()
    prims = made.lowered.prims
    for kernel in made.kernels:
        all_words = [operator_word(node, made.graph) for node in origins(kernel, prims, made.graph)]
        words = list(dict.fromkeys(word for word in all_words if word))
        if len(words) > 5:
            words = [*words[:3], "to", words[-1]]
        only_parts = all(name != prims[name].origin for name in kernel.stores)
        base = "_".join(words or ["copy"]) + (
            "_statistics" if kernel.is_reduce and only_parts and "norm" in "".join(words) else ""
        )
        name, count = f"fused_{base}", 1
        while name in taken:
            count += 1
            name = f"fused_{base}_{count}"
        taken.add(name)
        kernel.name = name


def operator_word(node: Node, graph: Graph) -> str:
    """What a kernel's name says of a node; views say nothing."""
    record = registry.RECORDS.get(node.target)
    if record is not None and (record.view or record.name == "identity"):
        return ""
    return operator_name(node, graph).replace(".", "_")
