"""Times every model of a folder on a GPU against eager: emits and builds them in parallel, then runs them one by one.

    PYTHONPATH=src python3 benchmarks/zoo_gpu.py [--compile] [--json OUT] [--emitted FOLDER] [--build-only] FOLDER_OR_FILE ...

--emitted keeps the emitted files, and uses those that are there; --build-only stops before anything is timed.
Each line: ratio eager / new, milliseconds, the largest difference between the two relative to the output's rms, and what ran.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fusewright.options import Options
from fusewright.pipeline import compile_problem
from fusewright.problem import load_problem

REPEATS = 10
SECONDS = float(os.environ.get("ZOO_SECONDS", "1e9"))  # no model is started later than this


def emit_and_build(path: str, folder: str) -> tuple[str, str, float]:
    """Writes the emitted file and leaves its extension in the cache; returns (path, error, seconds)."""
    started = time.perf_counter()
    try:
        file = Path(folder) / (path.replace("/", "_") + ".new")
        if not file.exists():
            _, _, emitted = compile_problem(load_problem(Path(path)), Options())
            file.write_text(emitted.text)
        space: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(file.read_text(), str(file), "exec"), space)
        if space["_KERNELS"]:
            space["_library"]()
    except BaseException as error:  # one broken model must not end the run
        lines = [line.strip() for line in str(error).splitlines() if "error" in line.lower()] or str(error).splitlines()
        return path, f"{type(error).__name__}: {(lines or [''])[0][:160]}", time.perf_counter() - started
    return path, "", time.perf_counter() - started


def interleaved(runs: dict[str, Any], flush: torch.Tensor) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    order = list(runs) * REPEATS
    random.Random(0).shuffle(order)
    for name in order:
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        runs[name]()
        end.record()
        torch.cuda.synchronize()
        times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def difference(a: Any, b: Any) -> float:
    worst = 0.0
    for x, y in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True):
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            scale = y.float().pow(2).mean().sqrt().item() or 1.0
            gap = (x.float() - y.float()).abs().max().item() / scale if x.numel() else 0.0
            worst = max(worst, gap if math.isfinite(gap) else float("inf"))
        elif isinstance(x, torch.Tensor):
            worst = max(worst, float((x != y).float().mean().item()))
    return worst


def timed(path: str, folder: str, with_compile: bool, flush: torch.Tensor) -> dict[str, Any]:
    problem = load_problem(Path(path))
    space: dict[str, Any] = {"__name__": "emitted"}
    text = (Path(folder) / (path.replace("/", "_") + ".new")).read_text()
    exec(compile(text, "emitted", "exec"), space)
    model = problem.model().cuda()
    new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
    new.load_state_dict(model.state_dict())
    inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in problem.inputs()]
    launched: list[str] = []
    plain: Any = space.get("_launch")  # a file without kernels has none

    def watched(kernel: str, *arguments: Any) -> None:
        launched.append(kernel)
        plain(kernel, *arguments)

    with torch.no_grad():
        space["_launch"] = watched
        torch.manual_seed(1)
        got = new(*inputs)
        space["_launch"] = plain
        torch.manual_seed(1)
        gap = difference(got, model(*inputs))
        del got
        runs = {"eager": lambda: model(*inputs), "new": lambda: new(*inputs)}
        if with_compile:
            compiled = torch.compile(model)
            runs["compile"] = lambda: compiled(*inputs)
        ms = interleaved(runs, flush)
    return {"model": path, "ms": ms, "difference": gap, "kernels": launched}


def time_all(paths: list[str], folder: str, with_compile: bool, log: str) -> None:
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    started = time.perf_counter()
    for path in paths:
        if time.perf_counter() - started > SECONDS:
            return
        try:
            row = timed(path, folder, with_compile, flush)
        except Exception as failure:
            row = {"model": path, "error": f"{type(failure).__name__}: {str(failure).splitlines()[0][:160]}"}
        with Path(log).open("a") as file:
            file.write(json.dumps(row) + "\n")
        ms = row.get("ms", {"eager": 0.0, "new": 1.0})
        print(
            f"{ms['eager'] / ms['new']:.2f} {path} {ms} {row.get('difference', '')} {row.get('error', '')}", flush=True
        )
        if "error" in row and "CUDA" in row["error"]:
            raise SystemExit(1)
        torch.cuda.empty_cache()


def main() -> None:
    arguments = sys.argv[1:]
    out = arguments[arguments.index("--json") + 1] if "--json" in arguments else ""
    kept = arguments[arguments.index("--emitted") + 1] if "--emitted" in arguments else ""
    places = [a for a in arguments if not a.startswith("-") and a not in (out, kept)]
    files = sorted(str(f) for p in places for f in ([Path(p)] if p.endswith(".py") else Path(p).rglob("*.py")))
    files = [f for f in files if "get_init_inputs" in Path(f).read_text()]
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    folder = kept or tempfile.mkdtemp()
    Path(folder).mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(12, maxtasksperchild=8) as pool:
        built = pool.starmap(emit_and_build, [(f, folder) for f in files], chunksize=1)
    print(f"emitted and built {len(files)} in {time.perf_counter() - started:.0f} s", flush=True)
    if "--build-only" in arguments:
        return
    rows: list[dict[str, Any]] = [{"model": path, "error": error} for path, error, _ in built if error]
    waiting = [path for path, error, _ in built if not error]
    log = Path(folder) / "rows.jsonl"
    log.write_text("")
    while waiting:  # a kernel that faults takes its process with it: the rest goes on in a new one
        worker = multiprocessing.get_context("spawn").Process(
            target=time_all, args=(waiting, folder, "--compile" in arguments, str(log))
        )
        worker.start()
        worker.join()
        done = [json.loads(line) for line in log.read_text().splitlines()]
        finished = {row["model"] for row in done}
        left = [path for path in waiting if path not in finished]
        if left and worker.exitcode != 0:
            with log.open("a") as file:
                file.write(json.dumps({"model": left[0], "error": "the process died"}) + "\n")
            left = left[1:]
        waiting = left if worker.exitcode != 0 else []
    rows += [json.loads(line) for line in log.read_text().splitlines()]
    for row in sorted(rows, key=lambda r: r["ms"]["eager"] / r["ms"]["new"] if "ms" in r else -1):
        if "error" in row:
            print(f"  FAILED {row['model']}: {row['error']}")
            continue
        ms = row["ms"]
        against = f" compile {ms['compile']:.3f}" if "compile" in ms else ""
        print(
            f"  {ms['eager'] / ms['new']:6.2f}x  {row['model']:<46} eager {ms['eager']:.3f} new {ms['new']:.3f}{against}"
            f"  diff {row['difference']:.1e}  {len(row['kernels'])} kernels"
        )
    ratios = [r["ms"]["eager"] / r["ms"]["new"] for r in rows if "ms" in r]
    mean = math.exp(statistics.mean(map(math.log, ratios)))
    print(f"geometric mean {mean:.3f} over {len(ratios)} models; {sum(r < 0.97 for r in ratios)} slower")
    if out:
        Path(out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
