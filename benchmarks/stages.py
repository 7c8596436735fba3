"""Where `optimize` spends its time and the GPU's memory: seconds and peak of each stage and check, and of whole functions.

    PYTHONPATH=src python3 benchmarks/stages.py [--profile N] MODEL.py ...

Needs a GPU. Each model runs tuned and verified, as `optimize` does, in a process of its own with an empty cache.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def one(path: Path, rows: int) -> None:
    import torch

    from fusewright.options import Options
    from fusewright.pipeline import optimize
    from fusewright.problem import load_problem

    spans: list[tuple[str, float, float]] = []
    stage, since = "load", time.perf_counter()

    def next_stage(name: str, detail: str) -> None:
        nonlocal stage, since
        torch.cuda.synchronize()
        spans.append((stage, time.perf_counter() - since, torch.cuda.max_memory_allocated() / 1e9))
        torch.cuda.reset_peak_memory_stats()
        stage, since = f"{name} {detail}".strip(), time.perf_counter()

    profile = cProfile.Profile()
    start = time.perf_counter()
    profile.enable()
    run = optimize(load_problem(path), Options(target="cuda", bench=False), next_stage)
    profile.disable()
    next_stage("end", "")
    print(f"== {path.name}: {time.perf_counter() - start:.1f} s, peak {max(gb for *_, gb in spans):.2f} GB, {run.verdict.passed}")
    for name, seconds, gb in spans:
        if seconds > 0.3 or gb > 1:
            print(f"   {seconds:7.2f} s {gb:7.2f} GB  {name[:110]}")
    if rows:
        pstats.Stats(profile).sort_stats("cumulative").print_stats("fusewright|subprocess|load_inline", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="also the N functions that took longest")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.models[0], given.profile)
        return
    for model in given.models:
        with tempfile.TemporaryDirectory() as cache:
            fresh = {"FUSEWRIGHT_CACHE": f"{cache}/fusewright", "TORCH_EXTENSIONS_DIR": f"{cache}/extensions"}
            command = [sys.executable, __file__, "--one", "--profile", str(given.profile), str(model)]
            subprocess.run(command, env={**os.environ, **fresh}, check=False)


if __name__ == "__main__":
    main()
