"""What a model costs the CPU from its file to the text of the new one, without the build.

    PYTHONPATH=src python3 benchmarks/capture.py [--times N] FILE ...

Each model is read twice in a process of its own, which has PyTorch and fusewright imported and nothing traced: the first time it pays
for what PyTorch's exporter imports when it is asked, the second time it does not. `read` is capture and laws, `emit` has the gradients
in it. Seconds of CPU time, of the process whose first time was the shortest of N: other work on the machine lengthens them, less than
it does clock time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path

from fusewright.autograd import plan_joint
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import PREDICTED
from fusewright.emit import emit
from fusewright.frontend.collector import uncollected
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

STAGES = ("load", "read", "plan", "emit")


@uncollected()
def stages(path: Path) -> list[float]:
    marks = [time.process_time()]
    problem = load_problem(path)
    marks.append(time.process_time())
    front = read_problem(problem, Options())
    marks.append(time.process_time())
    made = replace(front.planned(front.graph, frozenset(), PREDICTED), captured=front.captured)
    marks.append(time.process_time())
    emit(plan_joint(made, front.model), problem.source, front.model)
    marks.append(time.process_time())
    return [after - before for before, after in itertools.pairwise(marks)]


def alone(path: Path) -> list[list[float]]:
    """The stages of a first and of a second time, in a process of their own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps([stages(path), stages(path)]).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        found: list[list[float]] = json.loads(pipe.read())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    print("CPU seconds, first and warm".ljust(34) + "".join(f"{name:>12}" for name in (*STAGES, "all")))
    for path in given.files:
        first, warm = min((alone(path) for _ in range(given.times)), key=lambda found: sum(found[0]))
        pairs = [*zip(first, warm, strict=True), (sum(first), sum(warm))]
        print(path.stem[:32].ljust(34) + "".join(f"{a:7.2f}{b:5.2f}" for a, b in pairs), flush=True)


if __name__ == "__main__":
    main()
