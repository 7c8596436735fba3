"""Ours against eager in everything that must not be worse: forward, training step, both peaks of memory, both errors.

    PYTHONPATH=src python3 benchmarks/never_worse.py [--json ROWS.jsonl] [--resume] [--jobs N] [--part I/N] [--until S]
                                                     [--time-limit S] [--verify] [--gigabytes G] [--commit NAME] [--keep FOLDER]
                                                     [--target cuda|host] FOLDER_OR_FILE ...
    PYTHONPATH=src python3 benchmarks/never_worse.py --table ROWS.jsonl [FOLDER_OR_FILE ...]

Each model runs in a process of its own (never_worse_model.py), several at a time: the file is written as `optimize` writes it,
tuned, and whoever times or fills the GPU holds a lock. --verify runs the whole of `optimize` with its verification instead, whose
memory has a bound too (with --jobs 1 its seconds are those of a machine that does nothing else). Models whose forward or step
gains less than 3 % are timed once more at the end, alone; what is outside a bound even then, or ran out of memory, is tuned and
measured anew, alone. Nothing is started after --until seconds, but for the former, which take a fifth of them more; --resume goes on.

A row, one line of JSON, says on which commit it was made and, by a hash, of which text. Rows are added to the file and the last
one of a model counts: runs in parts, or on several machines, are merged by joining their files. --resume leaves out models that
have a row of this commit, and those for which tuning has the same texts to choose from as when their row was made (not with
--verify). --commit names the commit where there is only a copy of it. --table needs no GPU. --target host runs the same at the
small sizes on a CPU, as predicted, without memory and with no bound on times: to try the script, and for its errors.

Ends in a table, the worst of each bound and the number outside; exit status 1 if a bound is broken or a model was not measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LEAST = 0.97  # of a ratio eager / ours
AGAIN = 1.03  # what gains less is timed alone
MORE, MB = 1.05, 8.0  # a peak may be eager's times this, plus so many MB
VERIFYING, VERIFYING_MB = 2.0, 1000.0  # and verification's peak this many times the training step's, plus so many MB
ABREAST = 6  # models that are built side by side before they are timed alone
SHOWN = 5  # the worst of each bound
DONE = ("measured", "refused")
Row = dict[str, Any]


# ---- bounds ----


@dataclass(frozen=True)
class Bound:
    """What a row shows of it: a share of what is allowed, above 1 where it is broken, and words; None where it has nothing to say."""

    name: str
    share: Callable[[Row], float | None]
    words: Callable[[Row], str]


def ratio(row: Row, key: str) -> float | None:
    """Eager's time over ours."""
    ms = row.get(key)
    return ms["eager"] / ms["new"] if ms else None


def of_times(name: str, key: str) -> Bound:
    def share(row: Row) -> float | None:
        found = ratio(row, key) if row["target"] == "cuda" else None  # kernels that run on a host are not meant to be fast
        return LEAST / found if found is not None else None

    def words(row: Row) -> str:
        return f"{ratio(row, key):.3f} (eager {row[key]['eager']:.4g} ms, ours {row[key]['new']:.4g} ms)"

    return Bound(name, share, words)


def of_peaks(name: str, key: str) -> Bound:
    def share(row: Row) -> float | None:
        found = (row.get("peaks") or {}).get(key)
        return found["new"] / (MORE * found["eager"] + MB) if found else None

    def words(row: Row) -> str:
        found = row["peaks"][key]
        return f"{found['new'] / max(found['eager'], 1e-9):.2f} (eager {found['eager']:.1f} MB, ours {found['new']:.1f} MB)"

    return Bound(name, share, words)


def of_errors(name: str, key: str) -> Bound:
    def share(row: Row) -> float | None:
        found = (row.get("errors") or {}).get(key)
        if not found:
            return None
        return found["new"] / found["allowed"] if math.isfinite(found["allowed"]) else 0.0

    def words(row: Row) -> str:
        found = row["errors"][key]
        own = f", of its type {found['own']:.1e}" if found.get("own") is not None else ""
        return f"{found['tensor']}: eager {found['eager']:.1e}, ours {found['new']:.1e}, allowed {found['allowed']:.1e}{own}"

    return Bound(name, share, words)


def of_verification() -> Bound:
    def allowed(row: Row) -> float | None:
        peaks, made = row.get("peaks") or {}, row.get("optimize") or {}
        own = peaks.get("step") or peaks.get("inference")
        return VERIFYING * own["eager"] + VERIFYING_MB if own and made.get("verified") and made.get("mb") else None

    def share(row: Row) -> float | None:
        most = allowed(row)
        return row["optimize"]["mb"] / most if most else None

    return Bound("memory of verification", share, lambda row: f"{row['optimize']['mb']:.0f} MB, allowed {allowed(row):.0f} MB")


BOUNDS = (
    of_times(f"forward >= {LEAST}", "ms"),
    of_times(f"step >= {LEAST}", "step_ms"),
    of_peaks("peak of inference <= eager + 5 % + 8 MB", "inference"),
    of_peaks("peak of a step <= eager + 5 % + 8 MB", "step"),
    of_errors("error of results <= max(2 x eager's, its type's own, 1e-4 of rms)", "outputs"),
    of_errors("error of gradients <= the same", "gradients"),
    of_verification(),
)


def is_outside(row: Row) -> bool:
    return any((share := bound.share(row)) is not None and share > 1 for bound in BOUNDS)


def wants_to_be_alone(row: Row) -> bool:
    """What it was measured beside may have made it slow, or taken the memory."""
    without_room = row["outcome"] == "out of memory" or bool(not_tuned(row))
    return row.get("alone") != "tuned" and (is_slow(row, LEAST) or without_room)


def not_tuned(row: Row) -> list[str]:
    """Why tuning gave up, if it did: the row is that of the predicted file."""
    return [note for note in row.get("notes") or [] if note.startswith("not tuned")]


def slowest(row: Row) -> float:
    return min((found for key in ("ms", "step_ms") if (found := ratio(row, key)) is not None), default=math.inf)


def is_slow(row: Row, least: float) -> bool:
    return bool(row["target"] == "cuda" and slowest(row) < least)


# ---- the table ----


def number(value: float | None, form: str) -> str:
    return "-".rjust(len(format(0.0, form))) if value is None else format(value, form)


def line_of(row: Row, width: int) -> str:
    peaks, errors, made = (row.get(key) or {} for key in ("peaks", "errors", "optimize"))
    shares = [p["new"] / max(p["eager"], 1e-9) if (p := peaks.get(kind)) else None for kind in ("inference", "step")]
    words = [f"{row['model']:<{width}}", number(ratio(row, "ms"), "8.3f"), number(ratio(row, "step_ms"), "8.3f")]
    words += [number(share, "7.2f") for share in shares]
    for kind in ("outputs", "gradients"):
        found = errors.get(kind) or {}
        words.append(f"{number(found.get('eager'), '8.1e')} {number(found.get('new'), '8.1e')}")
    gigabytes = made["mb"] / 1e3 if made.get("mb") else None
    words += [number(made.get("seconds"), "6.1f"), number(gigabytes, "6.2f"), f"{row.get('commit', '')}"]
    notes = ["original"] if row.get("plain") else []
    notes += [f"errors at {errors['batch']} of the batch"] if errors.get("batch") else []
    notes += [f"no errors: {errors['skipped']}"] if errors.get("skipped") else []
    notes += [f"no step: {row['no_step']}"] if row.get("no_step") else []
    notes += not_tuned(row)
    notes += [f"{row['outcome']}: {row.get('why', '')}"] if row["outcome"] != "measured" else []
    return "  ".join([*words, "; ".join(notes)]).rstrip()


def heading(width: int) -> str:
    names = [f"{'eager / ours:':<{width}}", f"{'forward':>8}", f"{'step':>8}", f"{'memory':>7}", f"{'in step':>7}"]
    names += [f"{'error: eager, ours':>17}", f"{'of gradients':>17}", f"{'s':>6}", f"{'GB':>6}", "commit"]
    return "  ".join(names)


def mean_of(rows: Sequence[Row], key: str) -> str:
    found = [r for row in rows if (r := ratio(row, key)) is not None]
    if not found:
        return "none"
    return f"{math.exp(statistics.mean(map(math.log, found))):.3f} of {len(found)}, lowest {min(found):.3f}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    width = max([len("eager / ours:"), *(len(row["model"]) for row in rows)])
    yield heading(width)
    yield from (line_of(row, width) for row in rows)
    yield ""
    for bound in BOUNDS:
        judged = [(share, row) for row in rows if (share := bound.share(row)) is not None]
        if not judged:
            continue
        outside = sum(share > 1 for share, _ in judged)
        yield f"{bound.name}: {outside} of {len(judged)} outside; the worst:"
        for share, row in sorted(judged, key=lambda pair: -pair[0])[:SHOWN]:
            yield f"    {'OUTSIDE' if share > 1 else 'inside'}  {row['model']}  {bound.words(row)}"
    made = sorted(((row["optimize"]["seconds"], row) for row in rows if row.get("optimize")), key=lambda pair: -pair[0])
    if made:
        longest = ", ".join(f"{row['model']} {seconds:.0f} s" for seconds, row in made[:SHOWN])
        yield f"seconds of optimize: median {statistics.median(seconds for seconds, _ in made):.1f}; the longest {longest}"
    families = list(dict.fromkeys(family(row) for row in rows))
    for name in ["all", *(families if len(families) > 1 else [])]:
        part = [row for row in rows if name in ("all", family(row))]
        yield f"geometric mean, {name}: forward {mean_of(part, 'ms')}; step {mean_of(part, 'step_ms')}"
    outcomes = [row["outcome"] for row in rows]
    counted = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
    originals = sum(bool(row.get("plain")) for row in rows)
    commits = ", ".join(dict.fromkeys(row.get("commit", "") for row in rows))
    yield f"{len(rows)} models: {counted}; {originals} originals written in place of kernels; commits {commits}"


def family(row: Row) -> str:
    return str(row["model"]).rpartition("/")[0]


def status(rows: Sequence[Row]) -> int:
    return 1 if any(is_outside(row) or row["outcome"] not in DONE for row in rows) else 0


# ---- rows ----


def identity(row: Row) -> tuple[str, ...]:
    return tuple(row[key] for key in ("model", "sizes", "target"))


def read_rows(path: Path | None) -> dict[tuple[str, ...], Row]:
    """The last row of each model; a line that was cut off in the writing is none."""
    found: dict[tuple[str, ...], Row] = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else []:
        try:
            row = json.loads(line)
            name = identity(row)
        except (ValueError, KeyError, TypeError):
            continue
        found.pop(name, None)  # the order is that of the last ones
        found[name] = row
    return found


def models_of(places: Sequence[Path]) -> dict[str, Path]:
    """By path in this repository, however they were given, so that rows of different runs meet."""
    from fusewright.driver.suite import find_models

    paths = [path for place in places for path in (find_models(place).values() if place.is_dir() else [place])]
    return {name_of(path): path for path in paths}


def name_of(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else f"{path.parent.name}/{path.name}"


# ---- many models ----


@dataclass(frozen=True)
class Runner:
    """Starts the process of one model and reads its row."""

    arguments: argparse.Namespace
    commit: str
    lock: str
    keep: Path
    started: float

    def late(self, factor: float = 1.0) -> bool:
        return time.monotonic() - self.started > factor * self.arguments.until

    def row_of(self, name: str, path: Path, *flags: str) -> Row:
        from fusewright.driver.suite import SWITCH
        from fusewright.process import Limits, signal_name, watch, with_this_package

        given = self.arguments
        sizes = "full" if given.target == "cuda" else "small"
        row = {"commit": self.commit, "model": name, "sizes": sizes, "target": given.target}
        row["checks"] = "verified" if given.verify else "tuned"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", SWITCH: "" if sizes == "full" else "small"}
        command = [sys.executable, str(Path(__file__).with_name("never_worse_model.py")), str(path), "--lock", self.lock]
        command += ["--target", given.target, "--keep", str(self.keep), *flags, *(["--verify"] if given.verify else [])]
        command += ["--gigabytes", str(given.gigabytes)]
        start, limits = time.monotonic(), Limits(given.time_limit, 64.0)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=with_this_package(environment),
                start_new_session=True,
            )
            ended = watch(process, start, limits)
            output.seek(0), errors.seek(0)
            lines, said = output.read().decode(errors="replace").splitlines(), errors.read().decode(errors="replace").splitlines()
        for line in lines:
            row |= json.loads(line) if line.startswith("{") else {}
        row["seconds"] = round(time.monotonic() - start, 1)
        if ended:
            return row | {"outcome": ended, "why": limits.why(ended)}
        if process.returncode != 0 or "outcome" not in row:
            how = signal_name(process.returncode) if process.returncode < 0 else f"exit status {process.returncode}"
            return row | {"outcome": "crashed", "why": f"{how}: {said[-1] if said else ''}"}
        return row

    def first(self, name: str, path: Path, known: str) -> Row | None:
        """Beside others; None where it is too late."""
        return None if self.late() else self.row_of(name, path, "--known", known, "--hurry", str(self.arguments.hurry))

    def timed_alone(self, rows: Sequence[Row], paths: Sequence[Path]) -> list[Row]:
        """Each is built side by side with the others, and timed when all are: then nothing else goes on."""
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(rows)) as pool:
            go, ready = Path(folder) / "go", [Path(folder) / f"ready{i}" for i in range(len(rows))]

            def again(row: Row, path: Path, mark: Path) -> Row:
                flags = ["--text", str(self.text_of(row)), "--ready", str(mark), "--go", str(go)]
                return self.row_of(row["model"], path, *flags)

            futures = [pool.submit(again, *each) for each in zip(rows, paths, ready, strict=True)]
            while not all(future.done() or mark.exists() for future, mark in zip(futures, ready, strict=True)):
                time.sleep(0.05)
            go.touch()
            found = [future.result() for future in futures]
        return [retimed(row, timed) for row, timed in zip(rows, found, strict=True)]

    def text_of(self, row: Row) -> Path:
        return self.keep / f"{row.get('text')}.py"

    def tuned_alone(self, row: Row, path: Path) -> Row:
        """All of it again, with nothing beside it."""
        whole = self.row_of(row["model"], path)
        if whole["outcome"] != "measured":
            return row
        return {**whole, "alone": "tuned", "before": {key: row[key] for key in ("ms", "step_ms", "plain") if key in row}}


def retimed(row: Row, timed: Row) -> Row:
    """The row with its new times, where there are some."""
    if timed["outcome"] != "measured" or "ms" not in timed:
        return row
    keys = ("ms", "step_ms")
    before = {key: row[key] for key in keys if key in row}
    return {**row, **{key: timed[key] for key in keys if key in timed}, "alone": "timed", "before": before}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print the table of these rows, measure nothing")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 3))
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth model from the Ith on, counted from 0")
    parser.add_argument("--until", type=float, default=1e9)
    parser.add_argument("--time-limit", type=float, default=300.0)
    parser.add_argument("--target", choices=("host", "cuda"), default="cuda")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--gigabytes", type=float, default=0.0, help="of GPU memory that a model's process may take")
    parser.add_argument("--hurry", type=float, default=2.5, help="tuning beside others takes so many times less time")
    parser.add_argument("--commit", default="")
    parser.add_argument("--keep", type=Path, help="a folder for the files that are written")
    return parser.parse_args()


def is_known(row: Row, commit: str, verify: bool) -> bool:
    """It need not be measured again."""
    of_this_commit = row["commit"] == commit and not commit.endswith("+")
    return row["outcome"] in DONE and of_this_commit and (row["checks"] == "verified" or not verify)


def main() -> int:
    given = parsed()
    if given.table:
        wanted = set(models_of(given.places)) if given.places else None
        rows = [row for row in read_rows(given.table).values() if wanted is None or row["model"] in wanted]
        print(*table(sorted(rows, key=lambda row: str(row["model"]))), sep="\n")
        return status(rows)
    from all_variants import commit_of

    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    keep = given.keep or Path(tempfile.mkdtemp())
    keep.mkdir(parents=True, exist_ok=True)
    commit, part = given.commit or commit_of(), [int(word) for word in given.part.split("/")]
    runner = Runner(given, commit, str(Path(tempfile.mkdtemp()) / "timing"), keep, time.monotonic())
    places = given.places or [ROOT / "zoo", ROOT / "examples", ROOT / "benchmarks" / "unseen"]
    models = dict(list(models_of(places).items())[part[0] :: part[1]])
    kind = ("full" if given.target == "cuda" else "small", given.target)
    before = read_rows(given.json) if given.resume else {}
    old = {name: row for name in models if (row := before.get((name, *kind))) is not None}
    rows = {name: row for name, row in old.items() if is_known(row, commit, given.verify)}

    def keep_row(name: str, row: Row) -> None:
        rows[name] = row
        words = f"forward {number(ratio(row, 'ms'), '.3f')}  step {number(ratio(row, 'step_ms'), '.3f')}"
        words += ("  OUTSIDE" if is_outside(row) else "") + (f"  ({row['alone']} alone)" if row.get("alone") else "")
        words = f"{row['seconds']:6.1f} s  {name}  {words}  {row['outcome']}  {row.get('why', '')}"
        print(f"{len(rows):4}/{len(models)}  {words}".rstrip(), flush=True)
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(row) + "\n")

    texts = {name: row.get("texts", "") for name, row in old.items() if row["outcome"] == "measured" and not given.verify}
    with ThreadPoolExecutor(given.jobs) as pool:
        left = [(name, path) for name, path in models.items() if name not in rows]
        waiting = {pool.submit(runner.first, name, path, texts.get(name, "")): name for name, path in left}
        for future in as_completed(waiting):
            row, name = future.result(), waiting[future]
            if row is not None and row["outcome"] == "known":  # as it was, on this commit too
                row = {**old[name], "commit": commit}
            if row is not None:
                keep_row(name, row)
    slow = [name for name, row in rows.items() if is_slow(row, AGAIN) and not row.get("alone") and runner.text_of(row).exists()]
    for start in range(0, len(slow), ABREAST):
        names = slow[start : start + ABREAST]
        if not runner.late(1.2):
            for row in runner.timed_alone([rows[name] for name in names], [models[name] for name in names]):
                keep_row(row["model"], row)
    for name in sorted((name for name, row in rows.items() if wants_to_be_alone(row)), key=lambda name: slowest(rows[name])):
        if given.target == "cuda" and not runner.late():
            keep_row(name, runner.tuned_alone(rows[name], models[name]))
    print(*table([rows[name] for name in models if name in rows]), sep="\n")
    missing = [name for name in models if name not in rows]
    if missing:
        print(f"not started, out of time: {len(missing)} models: {', '.join(missing)}")
    return 1 if missing else status(list(rows.values()))


if __name__ == "__main__":
    sys.exit(main())
