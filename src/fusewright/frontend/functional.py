"""An exported program without in-place operators, in one trace.

PyTorch's `run_decompositions` does the same in two: it first runs the program to learn which inputs change, then traces it. Here
that is seen during the one trace. Programs that need what is learned first are left to PyTorch.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind, OutputSpec, TensorArgument

from . import composed

LEAVES = {InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.USER_INPUT}
CHANGES = {InputKind.BUFFER: OutputKind.BUFFER_MUTATION, InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION}


def functional(exported: ExportedProgram) -> ExportedProgram:
    """The program that `run_decompositions` gives: the same calls, names, places in the source and guards."""
    formulas = dict(composed.known())
    if can_be_retraced(exported):
        with contextlib.suppress(Exception):  # parts of PyTorch that other versions lack, and what its verifier rejects
            found = Retrace(exported).program()
            if found is not None:
                return found
    with contextlib.suppress(Exception):  # a formula that cannot be traced with these sizes: the operators stay whole
        return exported.run_decompositions(formulas)
    return exported.run_decompositions({})


def can_be_retraced(exported: ExportedProgram) -> bool:
    """Calls of operators on tensors and numbers; nothing is read that lies in the memory of another, and no part has a mode of its own."""
    signature = exported.graph_signature
    leaves = exported.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in leaves]
    tensors = [value for value in values if isinstance(value, Tensor)]
    states = [spec.kind is not InputKind.USER_INPUT for spec in signature.input_specs]
    unread = [state and not leaf.users for state, leaf in zip(states, leaves, strict=True)]  # of one buffer with two names, one is read
    apart = [value for value, left in zip(values, unread, strict=True) if isinstance(value, Tensor) and not left]
    return (
        not exported.graph.find_nodes(op="get_attr")  # parts under no_grad or autocast are modules of their own
        and all(spec.kind in LEAVES for spec in signature.input_specs)
        and all(spec.kind is OutputKind.USER_OUTPUT for spec in signature.output_specs)
        and all(isinstance(value, (Tensor, int, float, bool, str, torch.SymInt, type(None))) for value in values)
        and all(type(tensor) is type(tensors[0]) and tensor.layout is torch.strided for tensor in tensors)
        and len({tensor.untyped_storage()._cdata for tensor in apart}) == len(apart)
    )


class Retrace:
    """Runs one exported program on functional tensors; only lives for the length of `functional`."""

    def __init__(self, exported: ExportedProgram):
        self.exported, self.module = exported, exported.module()
        self.leaves = [node for node in exported.graph.nodes if node.op == "placeholder"]
        self.changed: list[int] = []
        self.reshaped = False

    def program(self) -> ExportedProgram | None:
        """None where an input changes its shape, or PyTorch would give another name or order."""
        from torch.export.exported_program import _get_updated_range_constraints

        if not self.in_order():
            return None
        exported, module = self.exported, self.trace()
        names = {leaf.name for leaf in self.leaves}
        named_alike = any(node.name in names for node in module.graph.nodes if node.op != "placeholder")
        if self.reshaped or named_alike:
            return None
        for new, old in zip(module.graph.find_nodes(op="placeholder"), self.leaves, strict=True):
            new.name = new.target = old.name
            new.meta = dict(old.meta)
        self.drop_copies(module)
        results: Any = module.graph.output_node().args[0]
        signature = self.signature(results)
        if signature is None:
            return None
        module.meta.update(exported.graph_module.meta)
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=signature,
            state_dict=exported.state_dict,
            range_constraints=_get_updated_range_constraints(module, exported.range_constraints),
            module_call_graph=exported.module_call_graph,
            example_inputs=exported.example_inputs,
            constants=exported.constants,
        )

    def in_order(self) -> bool:
        """PyTorch's retrace lists what its module holds in the module's order, and constants before the buffers of submodules."""
        specs = self.exported.graph_signature.input_specs
        parameters, buffers, constants = (
            [spec.target for spec in specs if spec.kind is kind]
            for kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        )
        held = [name for name, _ in self.module.named_buffers(remove_duplicate=False) if name not in constants]
        return (
            parameters == [name for name, _ in self.module.named_parameters(remove_duplicate=False)]
            and buffers == held
            and not (constants and any("." in str(name) for name in buffers))
        )

    def trace(self) -> torch.fx.GraphModule:
        """Everything PyTorch's own retrace has around it: composite operators that change nothing stay whole."""
        from torch._dispatch.python import enable_python_dispatcher
        from torch._export.utils import _compiling_state_context
        from torch._guards import TracingContext, detect_fake_mode, tracing
        from torch._subclasses.functional_tensor import FunctionalTensorMode
        from torch.export import exported_program
        from torch.export._trace import _ignore_backend_decomps
        from torch.fx.experimental.proxy_tensor import make_fx

        values = [leaf.meta["val"] for leaf in self.leaves]
        mode: Any = detect_fake_mode(values)
        formulas: Any
        composite, formulas = exported_program._split_decomp_table_to_cia_and_python_decomp(dict(composed.known()))
        with (
            mode,
            exported_program._override_composite_implicit_decomp(composite),
            tracing(TracingContext(mode)),
            _ignore_backend_decomps(),
            _compiling_state_context(),
            torch.no_grad(),
            enable_python_dispatcher(),
            FunctionalTensorMode(pre_dispatch=False, export=True, _allow_token_discovery=True),
        ):
            module = make_fx(self.run, decomposition_table=formulas, record_module_stack=True)(*values)
        module.graph.eliminate_dead_code()
        return module

    def run(self, *values: Any) -> tuple[list[Any], list[Any]]:
        """(what changed inputs become, what forward returns)"""
        from torch._functorch._aot_autograd import functional_utils as functions
        from torch.fx import traceback
        from torch.fx.experimental.proxy_tensor import maybe_disable_thunkify, maybe_enable_thunkify
        from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

        outermost = torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        with maybe_enable_thunkify():
            with torch._C._ExcludeDispatchKeyGuard(outermost):
                wrapped = [functions.to_fun(value) for value in values]
                with maybe_disable_thunkify(), traceback.preserve_node_meta():
                    self.check_guards(wrapped)
                    returned = PropagateUnbackedSymInts(self.exported.graph_module).run(*wrapped)
            tensors = [(i, new) for i, new in enumerate(wrapped) if isinstance(new, Tensor)]
            self.changed = [i for i, new in tensors if functions.has_data_mutation(new)]
            self.reshaped = any(
                functions.has_metadata_mutation(new, values[i], check_only_storage_mutation=False) for i, new in tensors
            )
            return [functions.from_fun(wrapped[i]) for i in self.changed], [functions.from_fun(value) for value in returned]

    def check_guards(self, wrapped: list[Any]) -> None:
        """What PyTorch's retrace begins with where its version checks guards: names count the sizes computed there."""
        specs = self.exported.graph_signature.input_specs
        inputs = [value for spec, value in zip(specs, wrapped, strict=True) if spec.kind is InputKind.USER_INPUT]
        named = [node.name for node in self.module.graph.find_nodes(op="placeholder")]  # not always as in the program
        given = dict(zip(named, inputs, strict=True))
        for call in self.module.graph.find_nodes(op="call_module", target="_guards_fn"):
            arguments = [given[node.name] if isinstance(node, torch.fx.Node) else node for node in call.args]
            self.module.get_submodule("_guards_fn")(*arguments)

    def drop_copies(self, module: torch.fx.GraphModule) -> None:
        """A buffer that becomes a copy of a value becomes the value."""
        end: Any = module.graph.output_node()
        for position, node in zip(self.changed, end.args[0][0], strict=True):
            is_buffer = self.exported.graph_signature.input_specs[position].kind is InputKind.BUFFER
            if is_buffer and isinstance(node, torch.fx.Node) and node.target is torch.ops.aten.copy.default:
                value: Any = node.args[1]
                node.replace_all_uses_with(value)
                module.graph.erase_node(node)
        end.args = ((*end.args[0][0], *end.args[0][1]),)

    def signature(self, results: tuple[Any, ...]) -> ExportGraphSignature | None:
        """Changed buffers and inputs come before what is returned. None where something else changes."""
        given = self.exported.graph_signature
        outputs = []
        for position, node in zip(self.changed, results, strict=False):
            spec = given.input_specs[position]
            if spec.kind not in CHANGES:
                return None
            target = spec.target if spec.kind is InputKind.BUFFER else self.leaves[position].name
            outputs.append(OutputSpec(CHANGES[spec.kind], TensorArgument(node.name), target))
        for spec, node in zip(given.output_specs, results[len(self.changed) :], strict=True):
            argument: Any = type(spec.arg)(name=node.name) if isinstance(node, torch.fx.Node) else spec.arg
            outputs.append(OutputSpec(spec.kind, argument, spec.target))
        return ExportGraphSignature(list(given.input_specs), outputs)
