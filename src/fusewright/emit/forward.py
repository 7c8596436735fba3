"""`forward` as Python: the test whether the plan fits, each step in order, what it changes, and what it returns."""

from __future__ import annotations

import functools
import sys
import textwrap
from types import ModuleType
from typing import Any

import torch

from ..autograd.flow import trainable
from ..autograd.regions import Region
from ..codegen.loops.text import wrapped
from ..errors import Unsupported
from ..ir import sizes
from ..ir.graph import Node, Output, Ref
from ..ir.index import contiguous
from ..ir.plan import Call, Shortcut, counts_up, label
from ..ir.pytext import argument_text, attribute_text, quoted
from ..schedule.layout import is_copy, memory_format
from ..schedule.training import PYTORCH, WHOLE, why
from .functions import Functions
from .lines import WIDTH, bracketed
from .signature import Signature
from .values import ForwardValues, is_batch_norm


class Forward:
    """Writes the method."""

    def __init__(self, values: ForwardValues, functions: Functions, signature: Signature):
        self.values, self.functions, self.signature = values, functions, signature
        self.regions, self.graph, self.prims, self.model = values.regions, values.graph, values.prims, values.model
        self.names_classes = False  # of the model's own file, once the text is made
        self.versions = False  # it tells autograd of what kernels overwrite, once the text is made

    def text(self) -> str:
        lines = [self.sizes_line(p) for p in dict.fromkeys(binding.input for binding in self.graph.symbols.values())]
        lines += self.steps()
        lines += self.updates()
        lines += self.assignments()
        lines.append(f"return {self.tree_text(self.graph.result)}")
        held = self.values.held_leaves()  # complete only now
        if held:
            unpacked = f",) = {self.values.free_name('tensors')}"
            lines[:0] = wrapped("(", [node.name for node in held], unpacked, limit=WIDTH - 4)
        body = "\n".join(f"        {line}" for line in lines)
        parameters, unpack = self.signature.text()
        rest = f"{unpack}{self.check_text(parameters)}{body}"
        outer = self.signature.outer()
        if outer is None:
            return f"    def forward(self, {parameters}):\n{rest}"
        myself, inner = (free_of(outer, name) for name in ("self", "_forward"))
        given = ", ".join([myself, *outer])
        text = f"    def forward({given}):  # parameters keep their names; what computes has names of its own for them\n"
        text += f"        return {inner}({given})\n\n\ndef {inner}(self, {parameters}):\n"
        return text + textwrap.indent(textwrap.dedent(rest), "    ")

    def check_text(self, parameters: str) -> str:
        """The way to the original, where the plan does not fit, and to the device of the inputs."""
        held, tensors = bool(self.values.held), self.values.free_name("tensors")
        given = [*([tensors] if held else []), ", ".join(self.signature.argument_names())]
        own = self.signature.outer() is None  # a method
        original = f"return super({'' if own else 'ModelNew, self'}).forward({parameters})\n"
        check = ""
        training = self.functions.training
        if self.graph.trains_others:
            check += f"        if torch.is_grad_enabled():  # tensors that are no parameters have gradients\n            {original}"
        if self.graph.own_gradients:  # what `_planned_for` would say at last, said first
            check += f"        if _trains(self, before=False):  # the model has its own derivatives\n            {original}"
        elif training.original and not self.regions.plan.shortcuts:
            always = ", before=False" if self.changes_by_parameters() else ""
            check += f"        if _trains(self{always}):  # {why(WHOLE, PYTORCH, training)}\n            {original}"
        check += f"        {tensors} = _follow(self)\n" if held else ""
        planned = f"_planned_for({', '.join(given)})"
        check += f"        if {tensors if held else '_follow(self)'} is None or not {planned}:\n            {original}"
        first = self.graph.inputs[0]
        check += f"        if {first}.get_device() != _current_device():  # that is where kernels are launched\n"
        check += f"            with torch.cuda.device({self.values.device()}):\n"
        check += f"                return ModelNew.forward(self, {parameters})\n"
        return check

    def changes_by_parameters(self) -> bool:
        """Gradients of a parameter would flow into what forward changes: the original trains it, so that no backward of ours ever runs."""
        asked, held = trainable(self.graph, self.model), {node.name for node in self.values.held_leaves()}
        return any(name in asked and name in held for name in self.values.behind_changes())

    def sizes_line(self, position: int) -> str:
        """The sizes of an argument that have names."""
        argument = self.signature.argument_name(position)
        named = {b.dim: str(symbol) for symbol, b in self.graph.symbols.items() if b.input == position}
        if len(named) == 1:
            ((dim, name),) = named.items()
            return f"{name} = {argument}.shape[{dim}]"
        return f"{', '.join(named.get(dim, '_') for dim in range(len(self.graph[argument].shape or ())))} = {argument}.shape"

    def steps(self) -> list[str]:
        """Library calls and regions, in the plan's order."""
        lines: list[str] = []
        symbols = self.graph.symbols
        sizes_text = f"({', '.join(map(str, symbols))}{',' if len(symbols) == 1 else ''})"
        done: set[int] = set()
        before: Shortcut | None = None
        outside: list[str] = []  # lines before the steps of a shortcut
        later: list[str] = []  # variables that are freed behind them
        for step in (*self.regions.plan.steps, None):
            shortcut = self.regions.shortcut_of(step) if step is not None else None
            if before is not None and shortcut is not before:
                lines = [*outside, *self.or_shorter(before, lines, sizes_text), *([f"del {', '.join(later)}"] if later else [])]
                later.clear()
            if shortcut is not None and shortcut is not before:
                outside, lines = lines, []
            before = shortcut
            if step is None:
                break
            if isinstance(step, Call):
                lines += self.values.library_lines(step.node, WIDTH - 8)
                lines += self.freed_after(step, later)
                continue
            region = self.regions.region_of(step)
            if id(region) not in done:
                done.add(id(region))
                lines += [*self.region_lines(region, sizes_text), *self.freed_after(region, later)]
        return lines

    def region_lines(self, region: Region, sizes_text: str) -> list[str]:
        """Its call. What it is to free by itself is let go before: only the list that it is given holds it then."""
        outputs, extra = self.regions.results(region)
        results = [*outputs, *extra]
        arguments = [text for _, text in self.functions.arguments(region)]
        tensors = f"[{', '.join(arguments)}]"
        handed = list(dict.fromkeys(self.functions.handed_over(region).values()))
        given = self.values.free_name("given")
        before = [f"{given} = {tensors}", f"del {', '.join(handed)}"] if handed else []
        tensors = given if handed else tensors
        if not results:  # it only overwrites buffers
            return [*before, f"{region.name}({sizes_text}, {tensors})"]
        target = f"({', '.join(results)},)" if len(results) == 1 else ", ".join(results)
        items = [f"{region.name}_region", sizes_text]
        if copy := self.unless_channels_last(region, f"_run({', '.join([*items, tensors])})"):
            return [*before, copy]
        items += [given] if handed else bracketed("[", arguments, "]")
        return [*before, *wrapped(f"{target} = _run(", items, ")", limit=WIDTH - 4)]

    def freed_after(self, step: Call | Region, later: list[str]) -> list[str]:
        """Lets go of what nothing needs after a step; `later` is what was there before the shortcut that it is a step of."""
        lifetimes, handed = self.functions.lifetimes, set[str]()
        if lifetimes.is_last(step):
            return []
        if isinstance(step, Region):
            handed = set(self.functions.handed_over(step).values())
        inside, outside = lifetimes.freed_after(step)
        later += outside
        now = [name for name in inside if name not in handed]
        return [f"del {', '.join(now)}"] if now else []

    def or_shorter(self, shortcut: Shortcut, steps: list[str], sizes_text: str) -> list[str]:
        """The lines of a shortcut's steps where gradients are asked for, and otherwise its kernel."""
        arguments = [text for _, text in self.functions.shortcut_arguments(shortcut)]
        results, _ = self.functions.shortcut_results(shortcut)
        target = f"({', '.join(results)},)" if len(results) == 1 else ", ".join(results)
        shorter = f"{target} = {self.regions.shorter[shortcut.kernel.name].name}({sizes_text}, {', '.join(arguments)})"
        if self.functions.training.original:  # whoever asks for gradients is not here, nor are larger sizes
            return [shorter]
        larger = "".join(f" or {sizes.text(size)} > {most}" for size, most in shortcut.most)
        return [
            f"if _needs_gradients({', '.join(self.read_by(shortcut))}){larger}:",
            *(f"    {line}" for line in steps),
            "else:",
            f"    {shorter}",
        ]

    def read_by(self, shortcut: Shortcut) -> list[str]:
        """The tensors that the steps of a shortcut read and do not make: names in `forward`, of what they are views of."""
        made: set[str] = set()
        found: list[str] = []
        for step in (step for step in self.regions.plan.steps if label(step) in shortcut.steps):
            if isinstance(step, Call):
                found += [self.values.variable(name) for name in step.node.inputs if name not in made]
                made.add(step.node.name)
            else:
                region = self.regions.region_of(step)
                found += [variable for name, variable in self.functions.variables(region).items() if name not in made]
                made.update(name for names in self.regions.results(region) for name in names)
        outside = [self.graph.index.get(name, name) for name in dict.fromkeys(found) if name not in made]
        return [self.variable_text(one) for one in outside if isinstance(one, str) or not self.values.is_in_the_file(one)]

    def variable_text(self, one: Node | str) -> str:
        """A variable of `forward`, or a tensor that it looks up in the model."""
        return one if isinstance(one, str) else self.values.text(one.name) if one.is_leaf else one.name

    def unless_channels_last(self, region: Region, run: str) -> str:
        """Where a region only copies an input to channels-last: nothing, if it lies so already."""
        stored = [self.prims[name] for kernel in region.kernels for name in kernel.stores]
        if len(stored) != 1 or not is_copy(self.graph.index.get(stored[0].name)):
            return ""
        (copy,) = stored
        source = self.values.text(self.prims[copy.inputs[0]].origin)
        return f"{copy.name} = {source} if {source}.is_contiguous({memory_format(copy)}) else {run}[0]"

    # ---- what it changes

    def updates(self) -> list[str]:
        changed = [o for o in self.graph.outputs if o.kind != "return"]
        where = {id(o): self.buffer_text(o.path) if o.kind == "buffer" else o.path for o in changed}
        lines = []
        counted: dict[int, list[str]] = {}
        for output in changed:
            step = counts_up(output, self.graph)
            if step is not None:
                counted.setdefault(step, []).append(where[id(output)])
            elif self.regions.overwrites(output) and not is_batch_norm(output, self.graph):
                lines.append(f"_increment_version({where[id(output)]})")
                self.versions = True
        for step, counters in counted.items():
            several = f"torch._foreach_add_([{', '.join(counters)}], {step})"
            lines.append(several if len(counters) > 1 else f"{counters[0]}.add_({step})")
        copied = [o for o in changed if not self.regions.is_applied(o)]
        copies = [f"    {where[id(o)]}.copy_({self.values.text(o.value.name)})" for o in copied]
        return [*lines, *(["with torch.no_grad():", *copies] if copies else [])]

    def buffer_text(self, path: str) -> str:
        leaves = (node for node in self.graph.nodes if node.target == "buffer" and node.args[0] == path)
        leaf = next(leaves, None)
        return attribute_text(self.model, path) if leaf is None else self.values.leaf_text(leaf)

    def assignments(self) -> list[str]:
        """What forward leaves on its modules."""

        def target(path: str) -> str:
            holder, _, name = path.rpartition(".")
            return f"{attribute_text(self.model, holder) if holder else 'self'}.{name}"

        assigned = [f"{target(path)} = {self.tree_text(tree)}" for path, tree in self.graph.assigned.items()]
        return [*assigned, *(f"{target(path)} += {step}" for path, step in self.graph.counted.items())]

    # ---- what it returns

    def tree_text(self, result: Any) -> str:
        """A structure whose leaves are positions of outputs."""

        def write(tree: Any) -> str:
            kind = type(tree)
            if isinstance(tree, dict):
                text = "{" + ", ".join(f"{key!a}: {write(item)}" for key, item in tree.items()) + "}"
                return text if kind is dict else f"{self.class_text(kind)}({text})"
            if isinstance(tree, list):
                text = f"[{', '.join(map(write, tree))}]"
                return text if kind is list else f"{self.class_text(kind)}({text})"
            if isinstance(tree, tuple):
                items = ", ".join(map(write, tree))
                if hasattr(tree, "_fields"):  # a namedtuple
                    return f"{self.class_text(kind)}({items})"
                text = f"({items}{',' if len(tree) == 1 else ''})"
                return text if kind is tuple else f"{self.class_text(kind)}({text})"
            if kind is int:
                return self.output_text(self.graph.outputs[tree])
            raise Unsupported(f"the model returns a {kind.__name__}, which is not rebuilt")

        return write(result)

    @functools.cached_property
    def copied(self) -> set[str]:
        """Results that kernels leave in the memory of a leaf, or of a result before them, where PyTorch's operators do not."""
        found: set[str] = set()
        homes = {node.name: node.name for node in self.graph.nodes if node.is_leaf}  # ours: theirs
        returned = [o for o in self.graph.outputs if o.kind == "return" and o.memory and self.buffer_of(o) is None]
        for output in sorted(returned, key=lambda o: o.order is not None):  # those may be copied in any case
            if homes.setdefault(self.memory_of(output.value.name), output.memory) != output.memory:
                found.add(output.value.name)
        return found

    def buffer_of(self, output: Output) -> Output | None:
        """The buffer that forward returns, after it has changed it."""
        alike = (o for o in self.graph.outputs if o.kind == "buffer" and (o.value, o.memory) == (output.value, output.memory))
        return next(alike, None)

    def memory_of(self, node: str) -> str:
        """The leaf, the call or the primitive whose memory a node's value lies in."""
        if node not in self.regions.lowered.value:  # an element of what a call of the library returns
            return node
        behind = self.regions.plan.base(self.regions.lowered.value[node])
        return behind.name if behind.name in self.regions.plan.home else behind.origin

    def lies_in_order(self, node: str) -> bool:
        """Kernels leave it in memory as it is, its elements in the order of its dimensions."""
        name = self.regions.lowered.value.get(node)
        return name in self.regions.plan.home and self.prims[name].strides == contiguous(self.prims[name].shape)

    def output_text(self, output: Output) -> str:
        if not isinstance(output.value, Ref):
            return argument_text(output.value, self.values.text, self.values.device())
        node, lowered = self.graph[output.value.name], self.regions.lowered
        changed = [o.path for o in self.graph.outputs if o.kind == "input" and o.value == output.value]
        if changed:  # it is that input
            return changed[0]
        if (buffer := self.buffer_of(output)) is not None:
            return self.buffer_text(buffer.path)
        text = self.values.text(node.name)
        is_leaf = not node.is_leaf and node.name not in lowered.library and self.prims[lowered.value[node.name]].is_load
        order = "" if output.order is None else f"memory_format={output.order}"
        if is_leaf or node.name in self.copied:
            return f"{text}.clone({order})"
        if output.order is None or (output.order is torch.contiguous_format and self.lies_in_order(node.name)):
            return text
        return f"{text}.contiguous({order if output.order is not torch.contiguous_format else ''})"

    def class_text(self, kind: type) -> str:
        """How the model's own file names a class, such as that of a namedtuple; torch has names for its own."""
        if kind.__module__ in ("torch", "torch.return_types"):
            return f"{kind.__module__}.{kind.__name__}"
        self.names_classes = True
        known = vars(sys.modules[type(self.model).__module__])
        for name, value in known.items():
            if value is kind:
                return f"_SPACE[{quoted(name)}]"
            if isinstance(value, ModuleType) and getattr(value, kind.__name__, None) is kind:
                return f"_SPACE[{quoted(name)}].{kind.__name__}"
        raise Unsupported(f"the model returns a {kind.__name__}, which its file has no name for")


def free_of(taken: list[str], name: str) -> str:
    while name in taken:
        name += "_"
    return name
