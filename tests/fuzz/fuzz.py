"""Random chains of fused operators, run by their host kernels and compared with PyTorch within the verifier's budget.

    python tests/fuzz/fuzz.py                       500 seeds
    python tests/fuzz/fuzz.py --start 90 --seeds 10
    python tests/fuzz/fuzz.py --sanitize address --seeds 20

Several chains are compiled as one model. A failure is looked for in each chain alone, and printed as a model file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from chains import Chain, draw, model_text


@dataclass(frozen=True)
class Failure:
    seeds: tuple[int, ...]
    why: str
    text: str  # a model file that shows it

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.seeds))
        return f"seed {seeds}: {self.why}\n\n# ---- fusewright optimize THIS_FILE --target host\n{self.text}"


Examined = tuple[list[Chain], list[Failure]]


def fuzz(seeds: Sequence[int], together: int, folder: Path, sanitize: str = "") -> Iterator[Examined]:
    """The chains of the seeds, some at a time, and what was wrong with them."""
    for i in range(0, len(seeds), together):
        chains = [draw(seed) for seed in seeds[i : i + together]]
        yield chains, examine(chains, folder, sanitize)


def examine(chains: list[Chain], folder: Path, sanitize: str = "", gradients: bool | None = None) -> list[Failure]:
    """Compile the chains as one model and compare every output; where that fails, each chain alone."""
    gradients = chains[0].seed % 3 == 0 if gradients is None else gradients
    wrong = compare(chains, folder, sanitize, gradients)
    if not wrong:
        return []
    if len(chains) == 1:
        return [Failure((chains[0].seed,), wrong, model_text(chains))]
    alone = [failure for chain in chains for failure in examine([chain], folder, sanitize, gradients)]
    return alone or [Failure(tuple(c.seed for c in chains), f"only together: {wrong}", model_text(chains))]


def compare(chains: list[Chain], folder: Path, sanitize: str, gradients: bool) -> str:
    """What is wrong with the model of these chains, or nothing."""
    import torch

    from fusewright.driver.pipeline import compile_problem
    from fusewright.frontend.problem import load_problem
    from fusewright.options import Options
    from fusewright.verify.candidate import load_candidate
    from fusewright.verify.checks import Trial
    from fusewright.verify.shrink import Shapes
    from fusewright.verify.subjects import subjects
    from fusewright.verify.variants import Variant

    path = folder / f"chains_{chains[0].seed}_{len(chains)}.py"
    path.write_text(model_text(chains))
    try:
        problem = load_problem(path)
        emitted = compile_problem(problem, Options(target="host", sanitize=sanitize))[2]
        candidate = load_candidate(emitted.text, "host", sanitize, name=f"{path.stem}_new.py")
        subject = subjects(problem, candidate, candidate.build_model(problem))
    except Exception as error:  # whatever the compiler raises is a finding
        return f"{type(error).__name__}: {error}"
    given = tuple(tuple(x.shape) for x in problem.inputs())
    plain = Variant("seeds", given)
    variants = [
        plain,
        replace(plain, seed=1, distribution="normal", layout="misaligned by one element", parameters="random"),
        replace(plain, seed=2, distribution="one NaN"),
        replace(plain, seed=3, sizes=other_sizes(chains), shape="other sizes", layout="dimensions in reverse order"),
    ]
    if gradients:
        variants.append(replace(plain, seed=4, distribution="normal", derivatives=1))
    trial = Trial(subject, Shapes(given, given, given, {}), tuple(variants), True)
    for variant in variants:
        with torch.random.fork_rng():
            trial.compare(variant)
        if variant in trial.errors:
            return f"raised {trial.errors[variant]} ({variant.distribution} values, {variant.layout}, {variant.shape})"
    wrong = [finding for finding in trial.findings if not finding.miss.passed]
    if wrong:
        worst = max(wrong, key=lambda finding: finding.miss.ratio)
        return f"{worst.miss.ratio:.3g} times its budget: {worst}"
    unused = [kernel.name for kernel in emitted.kernels if kernel.name not in trial.launched]
    return f"never launched: {', '.join(unused)}" if unused else ""


def other_sizes(chains: list[Chain]) -> tuple[tuple[int, ...], ...]:
    """One size of each chain changed wherever it occurs, if the chain takes that."""
    import torch

    found: list[tuple[int, ...]] = []
    for chain in chains:
        shapes = [shape for _, shape in chain.inputs]
        size = next((n for n in shapes[0] if n > 1), 0)
        changed = [tuple(n + 1 if n == size else n for n in shape) for shape in shapes]
        namespace: dict[str, object] = {}
        exec(model_text([chain]), namespace)
        model = namespace["Model"]()  # type: ignore[operator]
        try:
            with torch.no_grad():
                model(*[torch.randn(shape, dtype=eval(chain.dtype)) for shape in changed])
        except (RuntimeError, IndexError):
            changed = shapes
        found += changed
    return tuple(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--together", type=int, default=10, help="chains compiled as one model")
    parser.add_argument("--sanitize", choices=["address", "undefined", "thread"], default="")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sanitize and not given.inside:
        return sanitized(given.sanitize, [*sys.argv[1:], "--inside"])
    failed, start = 0, time.monotonic()
    seeds = range(given.start, given.start + given.seeds)
    with tempfile.TemporaryDirectory(prefix="fusewright-fuzz-") as folder:
        done = 0
        for chains, failures in fuzz(seeds, given.together, Path(folder), given.sanitize):
            done += len(chains)
            failed += len(failures)
            for failure in failures:
                print(f"\nFAILED {failure}", flush=True)
            seconds = time.monotonic() - start
            print(f"{done:5} of {len(seeds)} chains, {failed} failed, {seconds:7.1f} s", flush=True)
    return 1 if failed else 0


def sanitized(sanitize: str, arguments: list[str]) -> int:
    """The same command in a process with the sanitizer's runtime."""
    from fusewright.host.sanitize import run_sanitized, sanitizer_report

    result = run_sanitized([__file__, *arguments], sanitize)
    print(result.stdout, end="")
    if result.returncode:
        print(sanitizer_report(result.stderr) or result.stderr[-2000:], file=sys.stderr)
    return result.returncode


if __name__ == "__main__":
    sys.exit(main())
