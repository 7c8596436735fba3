"""How exact each variant of a model's file is, beside eager, and how long its forward takes.

    python benchmarks/errors.py [--target host] [--batch 16] [--precision eager,flags] MODEL.py ...

For each variant (the library's convolutions, ours, stored or recomputed, channels-last): the largest error over the rms against float64
of results and of gradients, ours and eager's; of gradients that are zero, the noise itself; and on a GPU milliseconds of forward.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices, convolutions
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate
from fusewright.verify.observe import cotangents

NOTHING = 1e-8  # of the largest gradient's rms: zero, but for rounding


def variants(front: Front) -> dict[str, Choices]:
    own = convolutions(front.graph)
    return {
        "predicted": Choices(),
        "library": Choices(own=frozenset()),
        "ours": Choices(own=own),
        "ours, stored": Choices(own=own, stored=True),
        "ours, recomputed": Choices(own=own, stored=False),
        "channels-last": Choices(own=frozenset(), channels_last=True),
    }


def observed(model: nn.Module, inputs: list[Any]) -> dict[str, Tensor]:
    """Results and parameters' gradients of a second step, from which on forward keeps what backward wants."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for _ in range(2):
        result = model(*inputs)
        outputs = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, Tensor)]
        smooth = [t for t in outputs if t.requires_grad]
        found = torch.autograd.grad(smooth, list(parameters.values()), cotangents(smooth), allow_unused=True) if smooth else ()
    gradients = {f"gradient of {name}": g for name, g in zip(parameters, found, strict=False) if g is not None}
    return {f"output {i}": t.detach() for i, t in enumerate(outputs)} | gradients


def compared(exact: dict[str, Tensor], eager: dict[str, Tensor], ours: dict[str, Tensor]) -> Iterator[str]:
    rms = {name: float(t.square().mean().sqrt()) for name, t in exact.items() if t.is_floating_point() and t.numel()}
    most = max((value for name, value in rms.items() if name.startswith("gradient")), default=0.0)
    for kind in ("output", "gradient"):
        rows = []
        for name in (name for name in rms if name.startswith(kind)):
            own, theirs = (float((found[name].double() - exact[name]).abs().max()) for found in (ours, eager))
            if kind == "gradient" and rms[name] <= NOTHING * most:
                yield f"      {name} is zero: noise {own:.1e}, eager {theirs:.1e}"
            elif rms[name]:
                rows.append((own / rms[name], theirs / rms[name], name))
        if rows:
            own, theirs, name = max(rows)
            yield f"      {kind}s: {own:.1e} of the rms, eager {theirs:.1e} ({name})"


def milliseconds(model: nn.Module, inputs: list[Any]) -> float:
    times = []
    with torch.no_grad():
        for _ in range(3):
            model(*inputs)
        for _ in range(20):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            model(*inputs)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", default="cuda" if torch.cuda.is_available() else "host")
    parser.add_argument("--batch", type=int, default=16, help="the first so many of each input, for errors")
    parser.add_argument("--precision", default="eager,flags")
    given = parser.parse_args()
    device = torch.device("cuda" if given.target == "cuda" else "cpu")
    for path in given.models:
        problem = load_problem(path)
        original = problem.model(0).to(device)
        whole = [x.to(device) if isinstance(x, Tensor) else x for x in problem.inputs(0)]
        few = [x[: given.batch] if isinstance(x, Tensor) and x.dim() else x for x in whole]
        state = copy.deepcopy(original.state_dict())
        wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in few]
        exact, eager = observed(copy.deepcopy(original).double(), wide), observed(original, few)
        print(path.name, f"eager {milliseconds(original, whole):.3f} ms" if given.target == "cuda" else "", flush=True)
        for precision in given.precision.split(","):
            front, texts = read_problem(problem, Options(target=given.target, precision=precision)), set[str]()
            print(f"  {precision}: {front.precision.name}; {front.precision.why}")
            for name, choices in variants(front).items():
                _, emitted = front.finish(choices)
                if emitted.text in texts:
                    continue
                texts.add(emitted.text)
                new = load_candidate(emitted.text, given.target, "", f"{path.stem}_new.py", emitted.place).build_model(problem)
                new.load_state_dict(state)
                print(f"    {name}", f"{milliseconds(new, whole):.3f} ms" if given.target == "cuda" else "")
                new.load_state_dict(state)
                for line in compared(exact, eager, observed(new, few)):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
