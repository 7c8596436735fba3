"""What the plan takes for granted, as tests that the file makes in each call: shapes, types, modes, flags, the GPU."""

from __future__ import annotations

from string import Template

import sympy
from torch import nn

from .. import sizes
from ..errors import Unsupported
from ..graph import Dim, Ref
from ..pytext import plain_text, quoted, shape_text
from .kernels import Shared
from .launches import Launches
from .signature import Signature
from .template import CONV_FLAGS, HELD, MODES, SLICES, TENSOR_CORES, TENSORS
from .values import ForwardValues


class Assumptions:
    """Writes the tests, and the tables they look into; once `forward` is written, which says what it reads of the model."""

    def __init__(
        self,
        values: ForwardValues,
        launches: Launches,
        backward: Shared,
        signature: Signature,
        modes: list[tuple[str, bool]],
    ):
        self.values, self.launches, self.backward, self.signature, self.modes = values, launches, backward, signature, modes
        self.regions, self.graph, self.prims, self.held = values.regions, values.graph, values.prims, values.held

    def flags_text(self) -> str:
        """What the file asks of flags and GPU for its tensor cores."""
        if not self.launches.on_tensor_cores:
            return ""
        convolves = any(text.tf32 for text in self.launches.on_tensor_cores)
        slices = any(text.sizes for text in self.launches.on_tensor_cores)  # which are counted by it
        return (CONV_FLAGS if convolves else "") + (SLICES if convolves or slices else "") + TENSOR_CORES

    def held_text(self) -> str:
        """Tables of what the plan was made for, and the functions that look it up."""
        text, paths = "", []
        if self.held:
            leaves = self.values.held_leaves()
            rows = [f'    ({quoted(str(n.args[0]))}, {n.dtype}, {shape_text(n.shape or ())}),' for n in leaves]
            text += "\n".join(["_TENSORS = (  # what forward reads of the model, its type and shape", *rows, ")\n"])
            paths.append('[tuple(path.split(".")[:-1]) for path, _, _ in _TENSORS]')
        if self.modes:
            rows = [f"    ({path_text(path)}, {training})," for path, training in self.modes]
            text += "\n".join(["_TRAINING = (  # modules that look at it", *rows, ")\n"])
            paths.append("[path for path, _ in _TRAINING]")
        if not text:
            return ""
        walk = Template(HELD).substitute(paths=" + ".join(paths))
        return text + walk + (TENSORS if self.held else "") + (MODES if self.modes else "")

    def planned_text(self) -> str:
        """The function that says whether a call is one that was planned for."""
        tests: list[str] = []
        inputs, tensors = self.graph.inputs, self.values.free_name("tensors")
        tests.append(f"_on_device({', '.join([*inputs, *([f'*{tensors}'] if self.held else [])])})")
        if self.held:
            tests.append(f"[tensor.dtype for tensor in {tensors}] == _DTYPES")
            tests.append(f"[tensor.shape for tensor in {tensors}] == _SHAPES")
        if self.regions.in_place:
            positions = {node.name: i for i, node in enumerate(self.values.held_leaves())}
            found = sorted(positions[self.prims[n].origin] for n in self.regions.in_place.values())
            tests.append(f"all([{tensors}[i].is_contiguous() for i in {tuple(found)}])  # overwritten by kernels")
        tests += [f"{name}.dtype == {self.graph[name].dtype}" for name in inputs]
        shapes = ", ".join(f"{name}.shape" for name in inputs)
        tests += [f"_shapes_fit({shapes})"] if shapes else []
        modules = self.values.free_name("modules")
        if self.modes:
            tests.append(f"all([{modules}[place].training == training for place, training in _MODES])")
        on_tensor_cores = self.launches.on_tensor_cores
        if on_tensor_cores:
            in_backward = [text for _, text in self.backward.anchored.values()]
            shared = max(text.shared_bytes for text in (*on_tensor_cores, *in_backward))
            allowed = "_tf32_allowed() and " if any(text.tf32 for text in on_tensor_cores) else ""
            tests.append(f"{allowed}_has_tensor_cores({self.values.device()}, {shared})")
        if self.graph.own_gradients:
            tests.append(f"not _needs_gradients({', '.join([*inputs, *([f'*{tensors}'] if self.held else [])])})  # the model has its own")
        for name, argument in zip(self.signature.argument_names(), self.graph.arguments, strict=True):
            if not isinstance(argument, Ref):
                tests.append(
                    f"type({name}) is {type(argument).__name__} and {name} == {plain_text(argument)}"
                    if argument is not None
                    else f"{name} is None"
                )
        every = self.signature.argument_names()
        arguments = ", ".join([*([modules] if self.modes else []), *([tensors] if self.held else []), *every])
        body = "\n".join(f"        and {test}" for test in tests[1:])
        return f"{self.shapes_text()}def _planned_for({arguments}):\n    return (\n        {tests[0]}\n{body}\n    )"

    def shapes_text(self) -> str:
        """The function that says whether inputs of these shapes are."""
        inputs = self.graph.inputs
        if not inputs:
            return ""
        ranks = [f"len({name}) != {len(self.graph[name].shape or ())}" for name in inputs]
        lines = [
            "@functools.lru_cache(maxsize=256)",
            f"def _shapes_fit({', '.join(inputs)}):",
            '    """Inputs of these shapes are what was planned for: the model takes the same way with them."""',
            f"    if {' or '.join(ranks)}:",
            "        return False",
        ]
        bound = {s: f"{self.signature.argument_name(b.input)}[{b.dim}]" for s, b in self.graph.symbols.items()}
        lines += [f"    {', '.join(map(str, bound))} = {', '.join(bound.values())}"] if bound else []
        tests = []
        for name in inputs:
            for dim, size in enumerate(self.graph[name].shape or ()):
                if bound.get(size) != f"{name}[{dim}]":
                    tests.append(f"{name}[{dim}] == {sizes.text(size)}")
        conditions = [guard_text(guard) for guard in self.graph.guards]
        tests += [f"({test})" if " or " in test or " and " in test else test for test in conditions]
        tests += [f"{sizes.text(size)} < {1 << 31}" for size in self.counted_by_int()]
        lines += ["    return (", "        " + "\n        and ".join(tests), "    )"] if tests else ["    return True"]
        return "\n".join(lines) + "\n\n\n"

    def counted_by_int(self) -> list[Dim]:
        """Elements of tensors that convolutions of our own address with 32 bits."""
        kernels = [kernel for kernel in self.regions.plan.every_kernel if kernel.fused is not None]
        counts = [sizes.product(self.prims[n].shape) for kernel in kernels for n in (*kernel.loads, *kernel.stores)]
        return list(dict.fromkeys(count for count in counts if not isinstance(count, int)))


def guard_text(guard: sympy.Basic) -> str:
    try:
        return sizes.text(guard)
    except sizes.Unprintable:
        raise Unsupported(
            f"the model branches on its input sizes in a way that cannot be written down: {guard}"
        ) from None


def training_modes(model: nn.Module) -> list[tuple[str, bool]]:
    """Modules whose code looks at `training`, and how it was set when the graph was captured."""
    found = []
    for path, module in model.named_modules():
        functions = [f for cls in type(module).__mro__ if cls not in (nn.Module, object) for f in vars(cls).values()]
        codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
        if any("training" in code.co_names for code in codes):
            found.append((path, module.training))
    return found


def path_text(path: str) -> str:
    names = [quoted(name) for name in path.split(".") if name]
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"
