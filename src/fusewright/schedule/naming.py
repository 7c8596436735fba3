"""What kernels are called: by their role. Forward `conv_pool_lse_fwd`, after the operators it computes; backward `bias_grad`, after
what it is the gradient of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ..ir.graph import Graph, Node
from ..ir.names import value_name
from ..ir.plan import Call, Kernel, Plan, operator_name, origins
from ..ops import registry

FORWARD, BACKWARD = "_fwd", "_grad"
LONGEST = 32  # letters, before its number and what it ends with
FEW_WORDS = 3  # that a name may hold besides what it is made for
MOST_WORDS = 4
SHORTER = {
    "logsumexp": "lse", "convolution": "conv", "max_pool": "pool", "avg_pool": "pool", "adaptive_max_pool": "pool",
    "adaptive_avg_pool": "pool", "lp_pool": "pool", "amax": "max", "amin": "min", "cross_entropy_loss": "cross_entropy",
    "addmm": "mm", "baddbmm": "bmm", "var_mean": "var", "linalg_vector_norm": "norm",
}  # fmt: skip
ARITHMETIC = frozenset(
    "add sub rsub mul div neg where le lt ge gt eq ne clone copy to to_copy fill zeros ones full new_zeros zeros_like ones_like "
    "full_like scalar_tensor".split()
)  # which say little


def name_kernels(made: Plan) -> None:
    """A kernel is called after the operators it replaces."""
    taken: set[str] = set()
    for kernel in made.kernels:
        base = joined(role(kernel, made)) + ("_stats" if only_statistics(kernel, made) else "")
        kernel.name = free(base, FORWARD, taken)


def named_gradients(made: Plan, region: Collection[Kernel], of: Plan, gradients: Mapping[str, str], taken: set[str]) -> Plan:
    """The plan of the gradients of some kernels of a plan. Its own kernels are called after what they are the gradients of; on the way
    there, after what they go back through. `gradients` are those that are asked for: by primitive in memory, the forward value."""
    through = list(dict.fromkeys(word for kernel in region for word in role(kernel, of)))
    steps: list[Kernel | Call] = []
    for step in made.steps:
        if isinstance(step, Kernel):
            reached = [of.graph[gradients[name]] for name in step.stores if name in gradients]
            own = set(role(step, made))
            words = value_words(reached, of.graph) or [word for word in through if word in own] or through
            step = replace(step, name=free(joined(words), BACKWARD, taken))
        steps.append(step)
    return replace(made, steps=tuple(steps))


def without_ending(name: str) -> str:
    """A kernel's name, as what Python calls the function that launches it is made of it."""
    return name.removesuffix(FORWARD)


def only_statistics(kernel: Kernel, made: Plan) -> bool:
    """It leaves the statistics of a norm, and no value of a node."""
    prims = made.lowered.prims
    norm = any("norm" in word for word in role(kernel, made))
    return norm and kernel.is_reduce and all(name != prims[name].origin for name in kernel.stores)


def free(base: str, ending: str, taken: set[str]) -> str:
    name, count = base + ending, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}{ending}"
    taken.add(name)
    return name


def joined(words: Collection[str]) -> str:
    """Words as one, without those in the middle where there are many."""
    found = list(dict.fromkeys(words))
    if len(found) > MOST_WORDS:
        found = [*found[:2], "to", found[-1]]
    text = "_".join(found)
    return text if len(text) <= LONGEST else text[:LONGEST].rstrip("_")


def role(kernel: Kernel, made: Plan) -> list[str]:
    """What it computes: contractions, reductions, pools, norms; functions of an element too, where the words are few; sums and products
    of elements only if there is nothing else. Views say nothing."""
    words: dict[str, bool] = {}  # and whether it is computed element by element
    for node in origins(kernel, made.lowered.prims, made.graph):
        record = registry.RECORDS.get(called_by(node, made.graph).target)
        if record is None or not (record.view or record.name == "identity"):
            word, pointwise = operator_word(node, made.graph), record is not None and record.pointwise
            words[word] = words.get(word, True) and pointwise
    spoken = [word for word in words if word not in ARITHMETIC]
    main = [word for word in spoken if not words[word]]
    found = spoken if not main or len(spoken) <= FEW_WORDS else main
    return found or [*words] or ["copy"]


def called_by(node: Node, graph: Graph) -> Node:
    """The call that an element is one of."""
    return graph[node.args[0].name] if node.target == "getitem" else node


def operator_word(node: Node, graph: Graph) -> str:
    """`conv` for conv2d, `pool` for max_pool3d_with_indices_backward."""
    name = operator_name(node, graph).replace(".", "_")
    name = re.sub(r"^native_|_with_indices|_backward(_data)?$|_forward$", "", name)
    name = re.sub(r"(?<=[a-z])[123]d(?=_|$)", "", name)
    return SHORTER.get(name, name)


def value_words(nodes: Iterable[Node], graph: Graph) -> list[str]:
    """What values of the forward graph are called in a name: a parameter with its module, `conv bias`; several without, or `norm weight
    bias` of one."""
    paths = [path_of(node, graph) for node in nodes]
    modules = {tuple(path[-2:-1]) for path in paths}
    return [*(modules.pop() if len(modules) == 1 else ()), *(path[-1] for path in paths)]


def path_of(node: Node, graph: Graph) -> list[str]:
    if not node.is_leaf:
        return [operator_word(node, graph)]
    said = node.args[0] if node.args and isinstance(node.args[0], str) else node.name
    parts = [value_name(part) for part in said.split(".") if not part.isdigit()]
    return parts or [value_name(node.name)]
