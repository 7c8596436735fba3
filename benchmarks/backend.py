"""Models through `torch.compile(backend="fusewright")` on the host, forward and backward: who ran each graph, and is it right?

    FUSEWRIGHT_ZOO=small PYTHONPATH=src python3 benchmarks/backend.py [--json ROWS.jsonl] [--commit NAME] [--time-limit S] MODELS ...
    python3 benchmarks/backend.py --table ROWS.jsonl

A model is called without gradients, then in a training step; graphs that are not ours run by PyTorch's operators. Results, buffers and
gradients of parameters (of inputs, where there are none) are compared with float64's: the error is the largest of a tensor over its
rms. It is right where that is at most twice eager's own, or 1e-4, or two roundings of the tensor's type at its largest value. Rows are
added to the file, one line of JSON each; models that have a row of this commit are left out, so a run that was stopped goes on. A
process takes models one after another; one that crashes or hangs costs its model alone.

Ends in a table; exit status 1 if a model is wrong or failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_S = 240.0  # for one model
TWICE, NEAR = 2.0, 1e-4
NOTHING = 1e-8  # of the largest gradient's rms: one below it is zero but for rounding, and its error is measured by the largest
Row = dict[str, Any]


# ---- one model, in a process of its own ----


def measured(path: Path) -> Row:
    import torch

    import fusewright
    from fusewright.frontend.given import deep_copy
    from fusewright.frontend.problem import load_problem
    from fusewright.verify.observe import needing_gradients, observe
    from fusewright.verify.reference import in_float64, type_of, widen_module, widened

    torch._dynamo.reset()
    fusewright.backend.reset_stats()
    problem = load_problem(path)
    model, inputs = problem.model(), problem.inputs()
    low = type_of(model, list(inputs))
    wide, compiled = widen_module(deep_copy(model)), deep_copy(model)
    compiled.compile(backend="fusewright", options={"target": "host", "fallback": "eager", "strict": True})
    worst: dict[str, Any] = {"share": -1.0}
    fixed = any(p.requires_grad for p in model.parameters())  # without parameters, gradients are those of inputs
    trains, real = trained(deep_copy(model), problem.inputs() if fixed else needing_gradients(problem.inputs()))
    for derivatives in (0, 1) if trains else (0,):
        if derivatives and not real:  # cotangents are of numbers
            model, wide, compiled = map(only_floats(), (model, wide, compiled))
        with in_float64(low):
            exact = observe(wide, widened(inputs), derivatives=derivatives, fixed=fixed)
        eager = observe(model, problem.inputs(), derivatives=derivatives, fixed=fixed)
        ours = observe(compiled, problem.inputs(), derivatives=derivatives, fixed=fixed)
        found = compared(exact.tensors, eager.tensors, ours.tensors)
        worst = max(worst, found, key=lambda each: each["share"])
    stats = fusewright.backend.stats()
    graphs = stats.graphs
    return {
        "outcome": "right" if worst["share"] <= 1 else "wrong",
        "graphs": [str(graph) for graph in graphs],
        "ours": stats.count("fusewright"),
        "left": stats.count("eager"),
        "kernels": len({(i, name) for i, graph in enumerate(graphs) for name in graph.launched}),
        "launches": sum(stats.launched.values()),
        "not_launched": [name for graph in graphs for name in graph.kernels if name not in graph.launched],
        "worst": worst,
    }


def trained(model: Any, inputs: Any) -> tuple[bool, bool]:
    """Whether eager gives gradients, and whether all its results are floating."""
    import torch
    from torch.utils._pytree import tree_leaves

    leaves = [leaf for leaf in tree_leaves(model(*inputs)) if isinstance(leaf, torch.Tensor)]
    smooth = [leaf for leaf in leaves if leaf.requires_grad]
    with contextlib.suppress(RuntimeError):  # forward overwrites what backward would need
        torch.autograd.backward([leaf.sum() for leaf in smooth])
        return bool(smooth), all(leaf.is_floating_point() for leaf in leaves)
    return False, True


def only_floats() -> Any:
    """A class of models that return of another's results the floating ones."""
    import torch
    from torch.utils._pytree import tree_leaves

    class OnlyFloats(torch.nn.Module):
        def __init__(self, model: torch.nn.Module):
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> list[Any]:
            leaves = [leaf for leaf in tree_leaves(self.model(*inputs)) if isinstance(leaf, torch.Tensor)]
            return [leaf for leaf in leaves if leaf.is_floating_point()]

    return OnlyFloats


def compared(exact: Any, eager: Any, ours: Any) -> dict[str, Any]:
    """The tensor that uses most of what it may err."""
    import torch

    floating = {name: t.double() for name, t in exact.items() if t.is_floating_point() and t.numel()}
    rms = {name: float(torch.nan_to_num(t, 0.0, 0.0, 0.0).square().mean().sqrt()) for name, t in floating.items()}
    most = max((value for name, value in rms.items() if name.startswith("gradient")), default=0.0)
    found: dict[str, Any] = {"share": 0.0, "tensor": "", "ours": 0.0, "eager": 0.0}
    for name, tensor in exact.items():
        if name not in ours or ours[name].shape != tensor.shape or ours[name].dtype != eager[name].dtype:
            return {"share": 9e9, "tensor": name, "ours": 9e9, "eager": 0.0}
        if name not in floating:
            same = torch.equal(ours[name], eager[name])
            share, errors = (0.0, (0.0, 0.0)) if same else (9e9, (9e9, 0.0))
        else:
            zero = name.startswith("gradient") and rms[name] <= NOTHING * most
            scale = max(most if zero else rms[name], 1e-30)
            errors = tuple(error(one[name].double(), floating[name]) / scale for one in (ours, eager))
            largest = float(torch.nan_to_num(floating[name], 0.0, 0.0, 0.0).abs().max())
            rounded = torch.finfo(ours[name].dtype).eps / 2 * largest / scale
            share = errors[0] / max(TWICE * errors[1], NEAR, TWICE * rounded)
        if share > found["share"]:
            found = {"share": share, "tensor": name, "ours": errors[0], "eager": errors[1]}
    return found


def error(value: Any, exact: Any) -> float:
    """Largest; NaN and infinity count where only one has them."""
    import torch

    odd = ~torch.isfinite(exact)
    if not bool((torch.isfinite(value) == ~odd).all()):
        return 9e9
    return float(torch.where(odd, 0.0, value - exact).abs().max())


def serve(paths: Sequence[str]) -> None:
    """The process: one line of JSON before and one after each model."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what models print
    for path in paths:
        print(json.dumps({"starts": path}), file=out, flush=True)
        start = time.monotonic()
        try:
            row = measured(Path(path))
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [""]
            row = {"outcome": "failed", "why": f"{type(problem).__name__}: {lines[0]}"}
        print(json.dumps({"model": path, **row, "seconds": round(time.monotonic() - start, 1)}), file=out, flush=True)


# ---- all of them ----


def rows_of(paths: list[str], limit: float) -> Iterator[Row]:
    left = list(paths)
    while left:
        command = [sys.executable, __file__, "--serve", *left]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT)
        assert process.stdout is not None
        running, timer = "", threading.Timer(limit, process.kill)
        for line in process.stdout:
            row = json.loads(line)
            timer.cancel()
            if "starts" in row:
                running, timer = row["starts"], threading.Timer(limit, process.kill)
                timer.start()
                continue
            left.remove(row["model"])
            running = ""
            yield row
        timer.cancel()
        status = process.wait()
        if running:
            left.remove(running)
            yield {"model": running, "outcome": "failed", "why": f"ended with status {status}"}
        elif left and status:
            yield {"model": left.pop(0), "outcome": "failed", "why": f"did not start: status {status}"}


def commit_of() -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", "src", "zoo") else "")


def files_of(places: Sequence[str]) -> list[str]:
    found = [sorted(Path(p).rglob("*.py")) if Path(p).is_dir() else [Path(p)] for p in places]
    files = [path.resolve() for paths in found for path in paths if path.name != "generate.py"]
    return [str(path.relative_to(ROOT)) for path in files]


def table(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{'model':<58} {'graphs':>6} {'ours':>4} {'left':>4} {'kernels':>7} {'launches':>8} {'error':>8} {'eager':>8}  outcome"
    for row in rows:
        name = row["model"].removesuffix(".py")
        if row["outcome"] == "failed":
            yield f"{name:<58} {'':>52}  failed: {row['why'][:120]}"
            continue
        worst = row["worst"]
        numbers = f"{len(row['graphs']):>6} {row['ours']:>4} {row['left']:>4} {row['kernels']:>7} {row['launches']:>8}"
        said = "" if row["outcome"] == "right" else f" ({worst['tensor']})"
        yield f"{name:<58} {numbers} {worst['ours']:>8.1e} {worst['eager']:>8.1e}  {row['outcome']}{said}"
    good = [row for row in rows if row["outcome"] == "right"]
    graphs, ours = (sum(count(row) for row in good) for count in (lambda r: len(r["graphs"]), lambda r: r["ours"]))
    yield ""
    with_kernels = sum(row["ours"] > 0 for row in good)
    yield f"{len(good)} of {len(rows)} models right; {ours} of their {graphs} graphs ours; {with_kernels} models with kernels"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--commit", default="", help="its name, where there is only a copy of it")
    parser.add_argument("--time-limit", type=float, default=LIMIT_S)
    given = parser.parse_args()
    if given.serve:
        serve(given.models)
        return 0
    kept = given.table or given.json
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept is not None and kept.exists() else []
    by_model = {row["model"]: row for row in known}
    if given.table is None:
        commit = given.commit or commit_of()
        wanted = [path for path in files_of(given.models) if by_model.get(path, {}).get("commit") != commit]
        for row in rows_of(wanted, given.time_limit):
            by_model[row["model"]] = row = {**row, "commit": commit}
            print(row["model"], row["outcome"], row.get("why", ""), *row.get("graphs", []), sep=" | ", flush=True)
            if given.json is not None:
                with given.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows = [by_model[name] for name in sorted(by_model)]
    print(*table(rows), sep="\n")
    return int(any(row["outcome"] != "right" for row in rows))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
