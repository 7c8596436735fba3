"""What a plan does, in words and numbers, before anything is built."""

from __future__ import annotations

from ..codegen.mma.anchor import rows_and_batch
from ..codegen.mma.product import product_ms, product_tile
from ..emit import Emitted
from ..emit.kernels import KernelFacts, facts
from ..frontend.dependence import unused_inputs
from ..ir import sizes
from ..ir.plan import Call, Kernel, Plan
from ..schedule.conv_fusion import ours_ms
from ..schedule.product_fusion import is_product
from ..schedule.training import AS_PREDICTED, Training, why

FULL_THREADS = 1024  # of a multiprocessor: half of what it can hold; an estimate of what keeps memory busy


def explain_plan(plan: Plan, emitted: Emitted, training: Training = AS_PREDICTED) -> str:
    graph = plan.graph
    lines = [f"planned for {plan.machine.with_article}: its rates are {plan.machine.rates}", ""]
    lines += ["graph", *(f"  {line}" for line in str(graph).splitlines()), ""]
    if plan.rules:
        lines += ["laws applied", *(f"  {rule}" for rule in plan.rules), ""]
    lines.append("steps")
    total, machine = 0.0, plan.machine.with_article
    for step in plan.steps:
        if isinstance(step, Call):
            if step.node.target != "getitem":
                lines.append(f"  library  {step.node.target}  -> {step.node.name}  {step.node.where}")
            continue
        launched = emitted.launched.get(step.name, step.name)
        (fact,) = facts(step, (launched,), plan)
        ms = predicted_ms(step, fact, plan)
        total += ms
        lines += [
            f"  kernel   {step.name}" + (f"  (launches {launched})" if launched != step.name else ""),
            f"           replaces {', '.join(fact.replaces)}",
            f"           {kind(step, plan)}; {amount(fact.bytes)}B, {amount(fact.flops)}FLOP, predicted {ms:.3f} ms on {machine}",
        ]
    for shortcut in plan.shortcuts:
        launched = emitted.launched.get(shortcut.kernel.name, shortcut.kernel.name)
        (fact,) = facts(shortcut.kernel, (launched,), plan)
        lines += [
            f"  kernel   {shortcut.kernel.name}" + (f"  (launches {launched})" if launched != shortcut.kernel.name else ""),
            f"           in the place of {', '.join(shortcut.steps)}, where no gradients are asked for",
            f"           {amount(fact.bytes)}B, {amount(fact.flops)}FLOP",
        ]
    if emitted.training:
        lines += ["", "where gradients are asked for"]
        lines += [f"  {name}: {what} ({why(name, what, training)})" for name, what in emitted.training.items()]
    floor = compulsory_bytes(plan) / plan.machine.memory_tb_per_s / 1e9
    lines += [
        "",
        f"kernels predicted {total:.3f} ms, library calls not counted; inputs, parameters and outputs once: {floor:.3f} ms",
    ]
    for warning in warnings(plan):
        lines.append(f"warning: {warning}")
    return "\n".join(lines)


def predicted_ms(kernel: Kernel, fact: KernelFacts, plan: Plan) -> float:
    """What the planner expects of a convolution or a product of ours; of other kernels, what they move and compute."""
    machine = plan.machine
    if is_product(kernel):
        assert kernel.fused is not None
        anchor = kernel.fused.anchor
        rows, batch = rows_and_batch(anchor, plan)
        return product_ms(anchor.conv, product_tile(anchor.conv, rows, batch, machine), rows, batch, machine)
    if kernel.fused is not None:
        return ours_ms(kernel.fused, plan)
    busy = max(fact.bytes / machine.memory_tb_per_s / 1e9, fact.flops / machine.fp32_tflops / 1e9)
    return busy / at_work(kernel, plan) + machine.launch_us / 1e3


def at_work(kernel: Kernel, plan: Plan) -> float:
    """The share of the GPU that is: a row is scanned by one block, four elements to a thread at a time."""
    if kernel.scanned is None:
        return 1.0
    rows, length = (plan.graph.hint(sizes.product(s)) for s in (kernel.row_shape, (kernel.space[kernel.scanned],)))
    return min(1.0, max(1, rows) * min(256, max(1, length // 4)) / (plan.machine.multiprocessors * FULL_THREADS))


def kind(kernel: Kernel, plan: Plan) -> str:
    space = "×".join(str(plan.graph.hint(size)) for size in kernel.space) or "scalar"  # those of the example, as are the bytes
    if kernel.is_pointwise:
        return f"pointwise over {space}"
    if kernel.is_scan:
        return f"scans dimension {kernel.scanned} of {space}"
    return f"reduces dimensions {', '.join(map(str, kernel.reduced))} of {space}"


def amount(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} P"


def compulsory_bytes(plan: Plan) -> int:
    """Inputs, parameters and buffers read once, outputs written once."""
    graph = plan.graph
    users = graph.users()
    total = 0
    for node in graph.nodes:
        if node.is_leaf and users[node.name] and node.shape is not None and node.dtype is not None:
            total += graph.hint(sizes.product(node.shape)) * node.dtype.itemsize
    for output in graph.outputs:
        result = graph.index.get(getattr(output.value, "name", ""))
        if result is not None and result.shape is not None and result.dtype is not None:
            total += graph.hint(sizes.product(result.shape)) * result.dtype.itemsize
    return total


def warnings(plan: Plan) -> list[str]:
    """Inputs that no output depends on: the user wants to know."""
    return unused_inputs(plan.graph)
