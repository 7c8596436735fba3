"""Every variant that tuning could choose of every model, compared with the original at batches 1 to 5 and at odd sizes.

    PYTHONPATH=src python3 benchmarks/all_variants.py [--json ROWS.jsonl] [--resume] [--jobs N] [--part I/N] [--time-limit S]
                                                      [--target host|cuda] [--full] [--verify] [--commit NAME] FOLDER_OR_FILE ...

Each model runs in a process of its own, at the small sizes of the zoo unless --full. --verify runs the whole verifier on each
variant (as `optimize --all-variants` does) instead of comparing at many sizes. A row, one line of JSON, says on which commit it
was made and, by a hash, of which texts; --resume leaves out models that have an equal row of this commit, or of the same texts
made by another one. Rows are added to the file, and the last one of a model counts: runs in parts, or on several machines, are
merged by joining their files. --commit names the commit where there is only a copy of it. Ends in a table and every wrong variant;
exit status 1 if there is one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


# ---- one model, in a process of its own ----


def one(path: Path, target: str, whole: bool, known: str) -> dict[str, Any]:
    """Its row, but for what the parent knows; short where its texts are `known`."""
    import torch

    from fusewright.driver.all_variants import sweep, try_all, variants
    from fusewright.driver.pipeline import judge_of, read_problem
    from fusewright.errors import Refused
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options

    torch.set_num_threads(1)
    options = Options(target=target, all_variants=True)
    try:
        front = read_problem(load_problem(path), options)
        every, notes = variants(front)
        texts = hashlib.sha256("\0".join(variant.emitted.text for variant in every).encode()).hexdigest()[:16]
        if texts == known:
            return {"texts": texts, "outcome": "known"}
        if whole:
            tried = list(try_all(front, every, target, judge_of(front, target), {}, lambda detail: None))
        else:
            tried = list(sweep(front, every, target))
    except Refused as refusal:
        return {"outcome": "refused", "why": str(refusal)}
    wrong = [variant.name for variant in tried if variant.wrong]
    return {
        "texts": texts,
        "outcome": "wrong" if wrong else "equal",
        "why": ", ".join(wrong),
        "plain": tried[0].original,  # the predicted file has no kernels
        "notes": notes,
        "variants": [variant.to_dict() for variant in tried],
    }


# ---- many models ----


def run(path: Path, name: str, known: str, arguments: argparse.Namespace, commit: str) -> dict[str, Any]:
    from fusewright.driver.suite import SWITCH
    from fusewright.process import Limits, signal_name, watch, with_this_package

    environment = {**os.environ, "OMP_NUM_THREADS": "1", SWITCH: "" if arguments.full else "small"}
    command = [sys.executable, __file__, "--one", str(path), "--target", arguments.target, "--known", known]
    start, limits = time.monotonic(), Limits(arguments.time_limit)
    row = {"commit": commit, "model": name, "sizes": "full" if arguments.full else "small", "target": arguments.target}
    row["checks"] = "all" if arguments.verify else "sizes"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, *(["--verify"] if arguments.verify else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=with_this_package(environment),
            start_new_session=True,
        )
        ended = watch(process, start, limits)
        output.seek(0), errors.seek(0)
        lines, said = output.read().decode(errors="replace").splitlines(), errors.read().decode(errors="replace").splitlines()
    seconds = round(time.monotonic() - start, 1)
    if ended:
        return {**row, "seconds": seconds, "outcome": ended, "why": limits.why(ended)}
    if process.returncode != 0 or not lines:
        how = signal_name(process.returncode) if process.returncode < 0 else f"exit status {process.returncode}"
        return {**row, "seconds": seconds, "outcome": "crashed", "why": f"{how}: {said[-1] if said else ''}"}
    return {**row, "seconds": seconds, **json.loads(lines[-1])}


def commit_of() -> str:
    """With a + where files that matter are not as committed: such a row says nothing about another run."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", "src", "zoo", "examples") else "")


def identity(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[key] for key in ("model", "sizes", "target", "checks"))


def read_rows(path: Path | None) -> dict[tuple[str, ...], dict[str, Any]]:
    """The last row of each model; a line that was cut off in the writing is none."""
    found = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else []:
        try:
            row = json.loads(line)
            found[identity(row)] = row
        except (ValueError, KeyError):
            continue
    return found


def models_of(places: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    from fusewright.driver.suite import find_models

    for place in places:
        if place.is_dir():
            yield from ((f"{place.name}/{name}", path) for name, path in find_models(place).items())
        else:
            yield place.name, place


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    width = max((len(row["model"]) for row in rows), default=0)
    for row in rows:
        variants = row.get("variants") or []
        distinct = [v for v in variants if not v["outcome"].startswith("the same file")]
        counts = f"{len(variants):3} variants, {len(distinct):2} distinct" if variants else ""
        yield f"{row['model']:<{width}}  {row['outcome']:<10}  {row['seconds']:6.1f} s  {counts}  {row['commit']}".rstrip()
    for row in rows:
        wrong = [v for v in row.get("variants") or [] if v["outcome"] in ("different", "does not build", "not run")]
        yield from (f"WRONG {row['model']}: {v['name']}: {v['outcome']}: {v['detail']}" for v in wrong)
        if not wrong and row["outcome"] != "equal":
            yield f"{row['model']}: {row['outcome']}: {row.get('why', '')}"
    outcomes = [row["outcome"] for row in rows]
    counted = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
    originals = sum(bool(row.get("plain")) for row in rows)
    yield f"{len(rows)} models: {counted}; {originals} originals written in place of kernels; {sum(r['seconds'] for r in rows):.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth model from the Ith on, counted from 0")
    parser.add_argument("--time-limit", type=float, default=600.0)
    parser.add_argument("--target", choices=("host", "cuda"), default="host")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--commit", default="")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--known", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments.target, arguments.verify, arguments.known)))
        return 0

    commit, before = arguments.commit or commit_of(), read_rows(arguments.json) if arguments.resume else {}
    part, parts = map(int, arguments.part.split("/"))
    models = dict(list(models_of(arguments.places or [ROOT / "zoo"]))[part::parts])
    kind = ("full" if arguments.full else "small", arguments.target, "all" if arguments.verify else "sizes")
    old = {name: row for name in models if (row := before.get((name, *kind))) is not None and row["outcome"] == "equal"}
    rows = {name: row for name, row in old.items() if row["commit"] == commit and not commit.endswith("+")}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {
            pool.submit(run, path, name, old.get(name, {}).get("texts", ""), arguments, commit): name
            for name, path in models.items()
            if name not in rows
        }
        for future in as_completed(waiting):
            row, name = future.result(), waiting[future]
            if row["outcome"] == "known":  # as it was, on this commit too
                row = {**old[name], "commit": commit}
            rows[name] = row
            words = f"{row['seconds']:6.1f} s  {name}  {row['outcome']}  {row.get('why', '')}"
            print(f"{len(rows):4}/{len(models)}  {words}".rstrip(), flush=True)
            if arguments.json:
                with arguments.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(*table([rows[name] for name in models]), sep="\n")
    return 0 if all(row["outcome"] in ("equal", "refused") for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
