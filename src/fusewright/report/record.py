"""What one run leaves behind: a record, plain enough for JSON, that the page and the terminal are drawn from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Refused
from ..ir.plan import origins as worked_on
from ..schedule.training import AS_PREDICTED, Training
from ..schedule.training import record as training_record
from .accuracy import errors_record

if TYPE_CHECKING:
    from ..bench.comparison import Timing
    from ..emit import Emitted
    from ..frontend.problem import Problem
    from ..ir.graph import Graph, Node
    from ..ir.plan import Plan
    from ..verify.verifier import Verdict

FORMAT = 1
Record = Mapping[str, Any]


def run_record(
    problem: Problem | None,
    plan: Plan | None = None,
    emitted: Emitted | None = None,
    verdict: Verdict | None = None,
    timing: Timing | None = None,
    *,
    before: Graph | None = None,  # the graph as captured, where laws have changed it since
    source: str | None = None,  # a candidate's text, where Fusewright did not write it
    training: Training = AS_PREDICTED,  # what was chosen for it
) -> dict[str, Any]:
    """Everything the page shows. A part that was not given is None, and the page says that it is missing."""
    text = emitted.text if emitted else source
    captured = before or (plan.graph if plan else None)
    return {
        "format": FORMAT,
        "model": problem.path.name if problem else None,
        "source": problem.source if problem else None,
        "before": graph_record(captured) if captured else None,
        "graph": graph_record(plan.graph) if plan else None,
        "steps": steps_record(plan) if plan else None,
        "kernels": kernels_record(emitted) if emitted else None,
        "rules": [str(rule) for rule in plan.rules] if plan else None,
        "training": training_record(emitted.training, training) if emitted else None,
        "emitted": text,
        "verdict": verdict_record(verdict) if verdict else None,
        "timing": timing.summary() if timing else None,
        "bench": timing.to_dict() if timing else None,
    }


def graph_record(graph: Graph) -> dict[str, Any]:
    outputs = [getattr(output.value, "name", None) for output in graph.outputs]
    return {
        "nodes": [_node(node, graph) for node in graph.nodes],
        "outputs": [
            {"name": name, "kind": output.kind, "path": output.path}
            for name, output in zip(outputs, graph.outputs, strict=True)
            if name
        ],
    }


def _node(node: Node, graph: Graph) -> dict[str, Any]:
    shape = None if node.shape is None else [graph.hint(size) for size in node.shape]
    size = math.prod(shape) * node.dtype.itemsize if shape is not None and node.dtype is not None else None
    return {
        "name": node.name,
        "op": node.target if isinstance(node.target, str) else str(node.target).removeprefix("aten."),
        "leaf": node.is_leaf,
        "inputs": list(node.inputs),
        "shape": shape,
        "dtype": str(node.dtype).removeprefix("torch.") if node.dtype is not None else None,
        "bytes": size,
        "file": Path(node.where.file).name,
        "line": node.where.line,
        "code": node.where.code,
        "module": node.where.module,
    }


def steps_record(plan: Plan) -> list[dict[str, Any]]:
    """In order: kernels with the nodes whose work they do and the nodes they read, and calls left to PyTorch."""
    steps: list[dict[str, Any]] = []
    step: Any
    for step in plan.steps:
        if hasattr(step, "node"):
            steps.append({"call": step.node.name})
            continue
        facts = {"nodes": members(plan, step), "reads": origins(plan, step.loads), "writes": origins(plan, step.stores)}
        steps.append({"kernel": step.name, **facts})
    return steps


def members(plan: Plan, kernel: Any) -> list[str]:
    """Graph nodes whose work the kernel does, in graph order."""
    return [node.name for node in worked_on(kernel, plan.lowered.prims, plan.graph) if not node.is_leaf]


def origins(plan: Plan, prims: Sequence[str]) -> list[str]:
    """Graph nodes that these primitives are values of."""
    found = {plan.lowered.prims[name].origin for name in prims}
    return [node.name for node in plan.graph.nodes if node.name in found]


def kernels_record(emitted: Emitted) -> list[dict[str, Any]]:
    return [{"name": k.name, "replaces": list(k.replaces), "bytes": k.bytes, "flops": k.flops} for k in emitted.kernels]


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    return {
        "passed": verdict.passed,
        "worst": verdict.worst,
        "max_error": verdict.max_error,
        "tolerance": verdict.tolerance,
        "errors": errors_record(verdict),
        "kernels": list(verdict.kernels),
        "library_calls": list(verdict.library_calls),
        "note": verdict.shapes_note,
        "seconds": verdict.seconds,
        "peak_gb": verdict.peak / 1e9,
        "own_peak_gb": verdict.own_peak / 1e9,
        "checks": [
            {"name": c.name, "status": c.status, "passed": c.passed, "detail": c.detail, "number": c.number, "seconds": c.seconds}
            for c in verdict.checks
        ],
    }


# ---- reading records ----


def load_records(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The records in these files, those of one model made into one; or a sentence that says which file is none."""
    return joined([load_record(path) for path in paths])


def load_record(path: Path) -> dict[str, Any]:
    """The record in this file; Refused: it holds none."""
    return record_in(load_json(path), path)


def load_json(path: Path) -> Any:
    """What a file holds; Refused, with a sentence, where it is not JSON."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refused(f"{path}: no such file") from None
    except IsADirectoryError:
        raise Refused(f"{path}: a directory, not a run record") from None
    except UnicodeDecodeError:
        raise Refused(f"{path}: not JSON: not UTF-8 text") from None
    except OSError as error:
        raise Refused(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Refused(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long to read
        raise Refused(f"{path}: not JSON that can be read: {type(error).__name__}") from None


def record_in(value: Any, path: Path) -> dict[str, Any]:
    """Of a file that was read already."""
    if not isinstance(value, dict) or not isinstance(value.get("model"), str) or not value["model"]:
        kind = "it names no model" if isinstance(value, dict) else f"it holds a {type(value).__name__}"
        raise Refused(f"{path}: not a run record: {kind}; `optimize --json`, `bench --json` and `suite --json` write them")
    if "checks" in value and "candidate" in value:
        raise Refused(f"{path}: not a run record: `verify --json` wrote it; `report` shows what optimize, bench and suite did")
    if isinstance(value.get("format"), int) and value["format"] > FORMAT:
        raise Refused(f"{path}: written by a newer Fusewright (format {value['format']}; this one reads {FORMAT})")
    return value


def joined(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One record for each model, in order: what a later one knows of it replaces what an earlier one knew."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        known = found.setdefault(str(record["model"]), {})
        known.update({key: value for key, value in record.items() if value is not None or key not in known})
    return list(found.values())
