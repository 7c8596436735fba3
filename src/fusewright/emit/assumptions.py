"""What the plan takes for granted, as tests that the file makes in each call: shapes, types, modes, flags, the GPU."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from ..codegen.loops.text import wrapped
from ..errors import Unsupported
from ..ir import sizes
from ..ir.graph import Dim, Node, Ref, draws_in_order
from ..ir.index import contiguous
from ..ir.pytext import plain_text, quoted, shape_text
from ..ir.reads import Methods
from ..schedule.training import AS_PREDICTED, PYTORCH, WHOLE, Training, why
from .forward import Forward
from .functions import Functions
from .launches import Launches
from .lines import WIDTH, all_of, bracketed, table
from .signature import Signature
from .surroundings import OWN_GLOBALS
from .values import ForwardValues


class Assumptions:
    """Writes the tests, and the tables they look into; once `forward` is written, which says what it reads of the model."""

    def __init__(
        self,
        values: ForwardValues,
        launches: Launches,
        functions: Functions,
        signature: Signature,
        forward: Forward,
        in_file: bool,
        training: Training = AS_PREDICTED,
    ):
        self.values, self.launches, self.functions, self.signature, self.forward = values, launches, functions, signature, forward
        self.in_file = in_file
        self.training = training
        self.regions, self.graph, self.prims, self.held = values.regions, values.graph, values.prims, values.held

    @property
    def flags(self) -> set[str]:
        """What the file asks of flags and GPU for its tensor cores, as `template.py` names it."""
        texts = self.launches.on_tensor_cores
        found = {"tensor cores"} if texts else set()
        found |= {"convolves"} if any(text.tf32 for text in texts) else set()
        return found | ({"slices"} if any(text.sizes for text in texts) else set())  # which are counted by it

    def held_text(self) -> str:
        """Tables of what the plan was made of."""
        reads, features = self.graph.reads, self.features
        rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        for path, kind in reads.classes.items():
            attributes = tuple(f"{quoted(name)}: {quoted(words)}" for name, words in sorted(reads.attributes[path].items()))
            rows.setdefault((kind, attributes), []).append(path)
        guarded = [guarded_row(kind, attributes, paths) for (kind, attributes), paths in rows.items()]
        tables = [f"_SPACE = {self.own_globals}  # what the model's own names stand for"] if self.names_its_own else []
        tables.append(table("_GUARDED", "()", guarded, "of each module on the way: its class, what forward read of it, and its places"))
        called = [self.methods_row(methods) for methods in reads.methods if not methods.inherited]
        tables.append(table("_METHODS", "{}", called, "and what it calls of classes"))
        if "inherited" in features:
            rows_of = [row for methods in reads.methods if methods.inherited for row in self.inherited_rows(methods)]
            tables.append(table("_INHERITED", "()", rows_of, "and what it reaches by super()"))
        if "globals" in features:
            found = [f"({quoted(m)}, {quoted(n)}, {self.words_of(m, n)})" for m, n in reads.globals]
            if any(not home and self.is_written(name) for home, name in reads.globals):
                tables.append("_written = _Words(torch.nn.Module(), Model.__module__).of  # of what stands above: in words of this Python")
            tables.append(table("_GLOBALS", "()", found, "module, name, value"))
        if "tied" in features:
            paths = [f"({', '.join(map(quoted, paths))})" for paths in reads.tied]
            tables.append(table("_TIED", "()", paths, "parts of the model that are one under several paths"))
        if "state" in features:
            places = [quoted(f"self.{name}") for name in sorted(reads.state)]
            tables.append(table("_STATE", "()", places, "what forward itself assigns"))
        if "parameters" in features:
            tensors = list(map(tensor_row, self.values.held_leaves()))
            tables.append(table("_TENSORS", "{}", tensors, "what forward reads of the model, its type and shape"))
            tables.append("_DTYPES, _SHAPES = map(list, zip(*_TENSORS.values()))")
        return "\n".join([*tables, f"_DEFAULT_DTYPE = {torch.get_default_dtype()}"])

    def is_written(self, name: str) -> bool:
        return self.in_file and name in self.graph.reads.written

    def words_of(self, home: str, name: str) -> str:
        """A global's words; of a function that stands in this file, what they are where it is loaded."""
        own = not home and self.is_written(name)
        return f"_written(_SPACE[{quoted(name)}])" if own else quoted(self.graph.reads.globals[home, name])

    def owner(self, methods: Methods) -> str:
        first, *inner = methods.qualname.split(".")
        return ".".join(["Model" if self.is_the_model(methods) else f"_SPACE[{quoted(first)}]", *inner])

    def inherited_rows(self, methods: Methods) -> list[str]:
        owner = self.owner(methods)
        return [f"({owner}, {quoted(name)}, {owner}.{name})" for name in methods.names]

    def methods_row(self, methods: Methods) -> str:
        owner = self.owner(methods)
        bound = "classmethods" in self.features
        members = [(quoted(name), f"_declared({owner}, {quoted(name)})" if bound else f"{owner}.{name}") for name in methods.names]
        return f"{quoted(methods.words)}: {{{', '.join(f'{name}: {member}' for name, member in members)}}}"

    @property
    def own_globals(self) -> str:
        return OWN_GLOBALS if self.in_file else 'getattr(sys.modules.get(Model.__module__), "__dict__", {})'

    @property
    def names_its_own(self) -> bool:
        """The file looks up what the model's own file calls by some name."""
        return self.forward.names_classes or "globals" in self.features or not all(map(self.is_the_model, self.graph.reads.methods))

    def is_the_model(self, methods: Methods) -> bool:
        return self.in_file and methods.qualname == "Model"

    @property
    def features(self) -> set[str]:
        """What the guards of this file need, as `following.py` names it."""
        found = set(self.graph.reads.features)
        leaves = self.values.held_leaves()
        in_globals = any("global" in node.kwargs for node in leaves)
        found |= {"globals"} if in_globals else set()
        return found | ({"parameters", "parameters in globals" if in_globals else "parameters in modules"} if leaves else set())

    def planned_text(self) -> str:
        """The function that says whether a call is one that was planned for."""
        tests: list[str] = []
        inputs, tensors = self.graph.inputs, self.values.free_name("tensors")
        tests.append(f"_TENSOR_TYPES.issuperset(map(type, ({', '.join([*inputs, *([f'*{tensors}'] if self.held else [])])},)))")
        tests.append(f"_on_device({', '.join([*inputs, *([f'*{tensors}'] if self.held else [])])})")
        if self.held:
            tests.append(f"[tensor.dtype for tensor in {tensors}] == _DTYPES and [tensor.shape for tensor in {tensors}] == _SHAPES")
        if self.regions.in_place:
            positions = {node.name: i for i, node in enumerate(self.values.held_leaves())}
            found = sorted(positions[self.prims[n].origin] for n in self.regions.in_place.values())
            tests.append(f"all([{tensors}[i].is_contiguous() for i in {tuple(found)}])  # overwritten by kernels")
        tests += [f"{name}.dtype == {self.graph[name].dtype}" for name in inputs]
        shapes = ", ".join(f"{name}.shape" for name in inputs)
        tests += [f"_shapes_fit({shapes})"] if shapes else []
        tests += self.strides_tests(tensors)
        on_tensor_cores = self.launches.on_tensor_cores
        if on_tensor_cores:
            shared = self.shared_bytes()
            allowed = "_tf32_allowed() and " if any(text.tf32 for text in on_tensor_cores) else ""
            planned = self.regions.plan.machine.with_article
            tests.append(f"{allowed}_has_tensor_cores({self.values.device()}, {shared})  # planned for {planned}")
        read = ", ".join([*inputs, *([f"*{tensors}"] if self.held else [])])
        environment = self.graph.reads.environment.items()
        tests += [f"os.environ.get({quoted(name)}) == {quoted(v)}  # forward reads it" for name, v in environment if v is not None]
        tests += [f"os.environ.get({quoted(name)}) is None  # forward reads it" for name, v in environment if v is None]
        if self.graph.in_grad_mode:
            tests.append("torch.is_grad_enabled()  # forward asks")
        if self.graph.own_gradients:
            tests.append(f"not _needs_gradients({read})  # the model has its own")
        elif self.training.original:
            asked = f"_needs_gradients({read})"
            if not self.regions.plan.shortcuts:  # these stand for steps that only training would take
                asked = f"(_Differentiable.trained and {asked})"
            tests.append(f"not {asked}  # training: {why(WHOLE, PYTORCH, self.training)}")
        if behind := self.values.behind_changes():
            places = {node.name: f"{tensors}[{i}]" for i, node in enumerate(self.values.held_leaves())}
            found_behind = ", ".join(places.get(name, name) for name in behind)
            tests.append(f"not _needs_gradients({found_behind})  # autograd is to know of what forward changes")
        for name, argument in zip(self.signature.argument_names(), self.graph.arguments, strict=True):
            if not isinstance(argument, Ref):
                tests.append(
                    f"type({name}) is {type(argument).__name__} and {name} == {plain_text(argument)}"
                    if argument is not None
                    else f"{name} is None"
                )
        every = self.signature.argument_names()
        arguments = ", ".join([*([tensors] if self.held else []), *every])
        body = "\n".join(f"        and {test}" for test in tests[1:])
        return f"{self.shapes_text()}{self.strides_text()}def _planned_for({arguments}):\n    return (\n        {tests[0]}\n{body}\n    )"

    def ordered_inputs(self) -> list[str]:
        """Inputs on whose order in memory it depends in what order random numbers are drawn."""
        return [name for name in self.graph.inputs if any(self.graph[name].strides)]

    def strides_tests(self, tensors: str) -> list[str]:
        """Tests that they lie as in the example, and so does what is read of the model."""
        remark = "  # random numbers are drawn in the order of memory" if self.only_drawn else "  # forward looks at how they lie in memory"
        tests = []
        if ordered := self.ordered_inputs():
            given = ", ".join([*(f"{name}.shape" for name in self.graph.inputs), *(f"{name}.stride()" for name in ordered)])
            tests.append(f"_strides_fit({given}){remark}")
        held = {i: node.strides[0] for i, node in enumerate(self.values.held_leaves()) if any(node.strides)}
        if held:
            texts = ", ".join(shape_text(strides or ()) for strides in held.values())
            tests.append(f"[{tensors}[i].stride() for i in {tuple(held)}] == [{texts}]{remark}")
        return tests

    def orders(self, leaf: Node) -> list[tuple[Dim, ...]]:
        """Strides with which an input lies in memory as in the example; without gaps too, where that has some."""
        strides, shape = leaf.strides[0] or (), leaf.shape or ()
        if not self.only_drawn or 0 in strides:
            return [strides]
        order = sorted(range(len(shape)), key=lambda d: -self.graph.hint(strides[d]))
        dense = dict(zip(order, contiguous(tuple(shape[d] for d in order)), strict=True))
        return list(dict.fromkeys((strides, tuple(dense[d] for d in range(len(shape))))))

    @property
    def only_drawn(self) -> bool:
        """Only the order counts: gaps in memory do not."""
        return all(draws_in_order(node) for node in self.graph.nodes if node.strides and not node.is_leaf) and not self.graph.asks_layout

    def strides_text(self) -> str:
        """The function that says whether inputs with these strides do."""
        if not (ordered := self.ordered_inputs()):
            return ""
        inputs, given = self.graph.inputs, {name: self.values.free_name(f"strides_of_{name}") for name in ordered}
        lines = ["@functools.lru_cache(maxsize=256)", f"def _strides_fit({', '.join([*inputs, *given.values()])}):"]
        lines += [f"    {self.sizes_text(p)}" for p in dict.fromkeys(binding.input for binding in self.graph.symbols.values())]
        accepted = {name: [shape_text(strides) for strides in self.orders(self.graph[name])] for name in ordered}
        tests = [f"{given[name]} in ({', '.join(t)})" if len(t) > 1 else f"{given[name]} == {t[0]}" for name, t in accepted.items()]
        return "\n".join([*lines, *all_of(tests)]) + "\n\n\n"

    def shared_bytes(self) -> int:
        """Most that a block takes of a kernel which no region guards."""
        regions = [region for region in self.regions if not self.functions.guarded(region)]
        of_shortcuts = [self.launches.anchored[shortcut.kernel.name].shared_bytes for shortcut in self.regions.plan.shortcuts]
        return max([*of_shortcuts, *map(self.functions.shared_bytes, regions)], default=0)

    def shapes_text(self) -> str:
        """The function that says whether inputs of these shapes are."""
        inputs = self.graph.inputs
        if not inputs:
            return ""
        ranks = [f"len({name}) != {len(self.graph[name].shape or ())}" for name in inputs]
        bound = {s: f"{self.signature.argument_name(b.input)}[{b.dim}]" for s, b in self.graph.symbols.items()}
        lines = [
            "@functools.lru_cache(maxsize=256)",
            f"def _shapes_fit({', '.join(inputs)}):",
            '    """Inputs of these shapes are what was planned for: the model takes the same way with them."""',
            f"    if {' or '.join(ranks)}:",
            "        return False",
        ]
        lines += [f"    {self.sizes_text(p)}" for p in dict.fromkeys(binding.input for binding in self.graph.symbols.values())]
        tests = []
        for name in inputs:
            for dim, size in enumerate(self.graph[name].shape or ()):
                if bound.get(size) != f"{name}[{dim}]":
                    tests.append(f"{name}[{dim}] == {sizes.text(size)}")
        several = (sympy.And, sympy.Or)
        tests += [f"({guard_text(guard)})" if isinstance(guard, several) else guard_text(guard) for guard in self.graph.guards]
        if self.training.original:
            tests += [f"{sizes.text(size)} <= {most}" for shortcut in self.regions.plan.shortcuts for size, most in shortcut.most]
        tests += [f"{sizes.text(size)} < {1 << 31}" for size in self.counted_by_int()]
        return "\n".join([*lines, *all_of(tests)]) + "\n\n\n"

    def sizes_text(self, position: int) -> str:
        """The sizes of an input that have names, taken from its shape."""
        argument = self.signature.argument_name(position)
        named = {b.dim: str(symbol) for symbol, b in self.graph.symbols.items() if b.input == position}
        if len(named) == 1:
            return "".join(f"{name} = {argument}[{dim}]" for dim, name in named.items())
        return f"{', '.join(named.get(dim, '_') for dim in range(len(self.graph[argument].shape or ())))} = {argument}"

    def counted_by_int(self) -> list[Dim]:
        """Elements of tensors that convolutions of our own address with 32 bits."""
        kernels = [kernel for kernel in self.regions.plan.every_kernel if kernel.fused is not None]
        counts = [sizes.product(self.prims[n].shape) for kernel in kernels for n in (*kernel.loads, *kernel.stores)]
        return list(dict.fromkeys(count for count in counts if not isinstance(count, int)))


def guarded_row(kind: str, attributes: Sequence[str], paths: Sequence[str]) -> str:
    listed = list(map(quoted, paths))
    pieces = [quoted(kind), *bracketed("{", attributes, "}"), *bracketed("(", listed, ",)" if len(paths) == 1 else ")")]
    return "\n    ".join(wrapped("(", pieces, ")", limit=WIDTH))


def tensor_row(node: Node) -> str:
    module, name = node.kwargs.get("global", ("", ""))
    place = f"({quoted(module)}, {quoted(name)})" if name else quoted(node.args[0])
    return f"{place}: ({node.dtype}, {shape_text(node.shape or ())})"


def guard_text(guard: sympy.Basic) -> str:
    try:
        return sizes.text(guard)
    except sizes.Unprintable:
        raise Unsupported(
            f"the model branches on its input sizes in a way that cannot be written down: {guard}"
        ) from None
