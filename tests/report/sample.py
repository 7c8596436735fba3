"""Records to draw from: a real plan of a small model, with times that nobody measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fusewright.bench.comparison import KernelTime, Measurement, Row, Timing
from fusewright.bench.roofline import Ceilings, Work, placed
from fusewright.bench.statistics import Ratio
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.report.report import run_record
from fusewright.verify.verifier import Check, Errors, Verdict

CEILINGS = Ceilings(4.19e12, 4.14e12, 50e12, 395e12, 741e12, 60_000_000)


def made_up_timing(model: str, kernels: list[tuple[str, int, int, tuple[str, ...]]]) -> Timing:
    """As `bench` would return it on a GPU that does not exist."""

    def measured(ms: float, ratio: float | None, memory: int) -> Measurement:
        interval = Ratio(ratio, ratio * 0.99, ratio * 1.012) if ratio else None
        return Measurement(ms, ms * 0.995, ms * 1.01, 83, ms + 0.03, 0.0, interval, interval, memory)

    own = []
    for k, (name, moved, flops, replaces) in enumerate(kernels):
        ms = (0.119, 0.266)[k % 2]
        own.append(KernelTime(name, ms, True, replaces, moved, flops, placed(ms, moved, flops, "fp32", CEILINGS)))
    library = KernelTime("implicit_convolve_sgemm", 0.9, False)
    total = sum(k.ms for k in own)
    spent = {"convolve": 1.1, "group_norm": 0.8, "tanh": 0.5, "hardswish": 0.5, "add": 0.4, "logsumexp": 0.3}
    eager = tuple(KernelTime(name, ms, False) for name, ms in spent.items())
    gigabyte = 10**9
    one, both = measured(3.58, None, 3 * gigabyte), measured(7.6, None, 5 * gigabyte)
    new, new_both = measured(1.335, 2.68, gigabyte // 2), measured(6.9, 1.10, 5 * gigabyte)
    rows = (
        Row("eager", "baseline", True, "the baseline", one, both, kernels=eager),
        Row(
            "eager, again", "control", True, "no difference: 1.00× (0.99× to 1.01×)", measured(3.58, 1.0, 3 * gigabyte)
        ),
        Row(
            "compile", "baseline", True, "faster: 2.42×", measured(1.48, 2.42, gigabyte), measured(3.76, 2.02, gigabyte)
        ),
        Row("max-autotune", "baseline", True, "faster: 2.86×", measured(1.25, 2.86, gigabyte)),
        Row(
            "model_new.py",
            "candidate",
            True,
            "faster: 2.68× (2.65× to 2.71×)",
            new,
            new_both,
            "faster: 1.10× (1.09× to 1.11×)",
            own_share=total / (total + 0.9),
            busy_ms=1.29,
            kernels=(library, *own),
            build={"cold_s": 12.4, "warm_s": 0.3},
            notes=("a note of its own",),
        ),
    )
    return Timing(
        model,
        {"name": "No GPU (made-up numbers)", "l2_bytes": 60_000_000},
        {
            "before": {},
            "after": {"sm_clock_mhz": 1980.0, "memory_clock_mhz": 2619.0, "power_w": 412.0, "held_back": []},
        },
        {"tf32 in convolutions": True, "tf32 in matmuls": False, "cudnn benchmark": False, "autocast": False},
        {"python": "3.11.7", "torch": "2.11.0", "cuda": "13.0", "cudnn": "91300"},
        CEILINGS,
        Work(67_108_864, 19_200, 8_128_512, 5_400_000_000, 22_700_000_000),
        0.018,
        rows,
        {"seed": 7, "rounds": {"forward": 41, "backward": 22}},
    )


def made_up_verdict(kernels: tuple[str, ...], passed: bool = True) -> Verdict:
    names = "constructs, state_dict, every element written, seeds, other shapes, gradients, kernels matter".split(", ")
    checks = tuple(Check(n, passed or n != "gradients", f"what {n} saw, in some words", 0.5, 0.1) for n in names)
    worst = "output 0 at [0, 3, 1]: got 4.41233, expected 4.41231, allowed ±0.0013"
    errors = Errors(3e-5, 1e-6, "output 0")
    return Verdict(passed, checks, worst, 2.3e-7, 1.3e-3, kernels, ("aten.convolution.default",), "verified at batch 2", errors=errors)


def record_of(model: Path, timed: bool = True, passed: bool = True, rules: tuple[str, ...] = ()) -> dict[str, Any]:
    """Through JSON and back, as a file would hold it."""
    problem = load_problem(model)
    before = capture(problem.model(), problem.inputs(), str(problem.path))
    _, made, emitted = compile_problem(problem, Options())
    facts = [(k.name, k.bytes, k.flops, k.replaces) for k in emitted.kernels]
    timing = made_up_timing(problem.path.name, facts) if timed else None
    verdict = made_up_verdict(tuple(name for name, *_ in facts), passed)
    record = run_record(problem, made, emitted, verdict, timing, before=before)
    return json.loads(json.dumps(record | ({"rules": list(rules)} if rules else {})))
