"""Peak memory of emitted files against eager, inference and training step, with no GPU: every tensor is on the `meta` device.

    PYTHONPATH=src python3 benchmarks/memory.py [--every-variant] [--json FILE] FILE_OR_FOLDER ...

Each model is planned as predicted, at the file's own sizes, and runs at them: tensors have sizes and no memory, kernels are not
launched, and `schedule/footprint.py` counts what exists. Bytes beyond parameters and inputs; a step is a forward and the gradients of
all parameters (of inputs, where there are none), the second one: in the first some regions compute once more what later ones save.
Gradients of results are given, or the results are summed: eager keeps the gradient of a sum as one number, expanded.
Workspaces of cuDNN and cuBLAS are not seen, on either side. The bound is eager's peak + 5 % + 8 MB. Worst first; exit status 1 where
one is over.
`--every-variant`: every file that tuning could choose, and the worst of each model is shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fusewright.driver.all_variants import variants
from fusewright.driver.pipeline import read_problem
from fusewright.driver.suite import find_models
from fusewright.driver.tuning.choices import PREDICTED
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options
from fusewright.schedule.footprint import Peaks, bound, built, on_meta, peaks_of, placeless


@dataclass(frozen=True)
class Row:
    model: str
    variant: str
    eager: Peaks
    ours: Peaks
    launches: int
    left: int  # regions that train by PyTorch's operators because kernels would hold more memory

    def over(self) -> float:
        """How many times the bound, the worse of inference and step."""
        ours, eager = self.ours, self.eager
        pairs = [(ours.inference, eager.inference), (ours.step, eager.step), (ours.summed, eager.summed)]
        return max(new / bound(old) for new, old in pairs if new is not None and old is not None)

    def __str__(self) -> str:
        cells = [f"{megabytes(self.eager.inference)} {megabytes(self.ours.inference)} {ratio(self.ours.inference, self.eager.inference)}"]
        cells.append(f"{megabytes(self.eager.step)} {megabytes(self.ours.step)} {ratio(self.ours.step, self.eager.step)}")
        cells.append(f"{megabytes(self.eager.summed)} {megabytes(self.ours.summed)} {ratio(self.ours.summed, self.eager.summed)}")
        words = [f"{self.left} left to PyTorch in training"] if self.left else []
        words += [self.variant] if self.variant else []
        return f"{self.model[:48]:<48} {'  '.join(cells)}  {'OVER' if self.over() > 1 else '    '} {', '.join(words)}".rstrip()


def megabytes(size: int | None) -> str:
    return f"{size / 1e6:>9.1f}" if size is not None else f"{'–':>9}"


def ratio(ours: int | None, eager: int | None) -> str:
    return f"{ours / eager:>6.2f}" if ours is not None and eager else f"{'–':>6}"


def loaded(text: str, path: Path, problem: Problem) -> tuple[nn.Module, list[str]]:
    """An emitted file's model on the meta device, and the kernels that it launches."""
    space: dict[str, Any] = {"__name__": "emitted", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), space)
    launched = placeless(space) if space["_KERNELS"] else []
    return built(space["ModelNew"], problem.namespace.get_init_inputs()), launched


def rows_of(path: Path, name: str, every_variant: bool) -> Iterator[Row]:
    problem = load_problem(path)
    front = read_problem(problem, Options(target="host"))
    inputs = on_meta(problem.inputs())
    eager = peaks_of(built(problem.namespace.Model, problem.namespace.get_init_inputs()), inputs)
    texts: dict[str, str] = {}
    if every_variant:
        texts = {variant.emitted.text: variant.name for variant in variants(front)[0] if not variant.same_as}
    else:
        texts = {front.finish(PREDICTED)[1].text: ""}
    for text, variant in texts.items():
        model, launched = loaded(text, path, problem)
        ours = peaks_of(model, on_meta(inputs))
        if not launched and "_CUDA_SOURCE" in text:
            raise RuntimeError("its kernels were not launched: the plan does not fit tensors without memory")
        yield Row(name, variant, eager, ours, len(launched), text.count("would hold more memory at once"))


def worst_of(path: Path, name: str, every_variant: bool) -> Row:
    return max(rows_of(path, name, every_variant), key=Row.over)


def models_of(paths: list[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in paths:
        found |= {f"{path.name}/{name}": file for name, file in find_models(path).items()} if path.is_dir() else {path.name: path}
    return found


def attempt(run: Callable[[], Row], name: str) -> Row | None:
    """A model that cannot be measured so costs its own line."""
    try:
        return run()
    except Exception as error:  # whatever a model does without memory
        words = str(error).splitlines()
        print(f"{name}: not measured: {type(error).__name__}: {words[0] if words else ''}", flush=True)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--every-variant", action="store_true", help="every file that tuning could choose; the worst is shown")
    parser.add_argument("--json", type=Path, help="leave the rows there")
    given = parser.parse_args()
    rows: list[Row] = []
    for name, path in models_of(given.paths).items():
        row = attempt(lambda path=path, name=name: worst_of(path, name, given.every_variant), name)  # type: ignore[misc]
        rows += [row] if row is not None else []
        if row is not None and row.over() > 1:
            print(f"{row}", file=sys.stderr, flush=True)
    rows.sort(key=lambda row: -row.over())
    columns = f"{'eager':>9} {'ours':>9} {'ratio':>6}"
    print(f"{'MB beyond parameters and inputs':<48} {columns}  {columns}  {columns}")
    print(f"{'':<48} {'inference':>26}  {'training step':>26}  {'of a summed loss':>26}")
    print(*rows, sep="\n")
    over = [row for row in rows if row.over() > 1]
    print(f"{len(rows)} models, {len(over)} over eager + 5 % + 8 MB")
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
