"""Where `optimize` spends its time and the GPU's memory: seconds and peak of each stage and check, and of whole functions.

    PYTHONPATH=src python3 benchmarks/stages.py [--profile N] MODEL.py ...

Needs a GPU. Each model runs tuned and verified, as `optimize` does, in a process of its own with an empty cache.
"""

from __future__ import annotations

import argparse
import contextlib
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

    from fusewright.driver.pipeline import optimize
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    spans: list[tuple[str, float, float]] = []
    stage, since = "load", time.perf_counter()

    def next_stage(name: str, detail: str) -> None:
        nonlocal stage, since
        torch.cuda.synchronize()
        spans.append((stage, time.perf_counter() - since, torch.cuda.max_memory_allocated() / 1e9))
        torch.cuda.reset_peak_memory_stats()
        stage, since = f"{name} {detail}".strip(), time.perf_counter()

    profile = cProfile.Profile() if rows else None  # which slows Python down
    start = time.perf_counter()
    with profile or contextlib.nullcontext():
        run = optimize(load_problem(path), Options(target="cuda", bench=False), next_stage)
    next_stage("end", "")
    took, peak, verdict = time.perf_counter() - start, max(gb for *_, gb in spans), run.verdict
    print(f"== {path.name}: {took:.1f} s, peak {peak:.2f} GB, {'equal' if verdict.passed else 'DIFFERENT'}")
    own = f"{verdict.seconds:.1f} s and {verdict.peak / 1e9:.2f} GB, a training step {verdict.own_peak / 1e9:.2f} GB"
    print(f"   verified in {own}; allowed {2 * verdict.own_peak / 1e9 + 1:.2f} GB {verdict.shapes_note}")
    for name, seconds, gb in spans:
        if seconds > 0.3 or gb > 1:
            print(f"   {seconds:7.2f} s {gb:7.2f} GB  {name[:110]}")
    if profile is not None:
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
