"""`optimize` and `explain`: from a model file to its plan and to the new file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ...frontend.quiet import unsaid
from ..console import Screen, say, show_degraded, show_report, show_variants, show_verdict, stages
from .again import needs_runtime, under
from .app import NOT_EQUAL, complain, guarded, the_line
from .arguments import (
    ArchOption,
    ArithmeticMode,
    ArithmeticOption,
    AssumeFinite,
    ForwardOnly,
    ModelFile,
    ModesOption,
    PrecisionMode,
    PrecisionOption,
    Quiet,
    SanitizeOption,
    Strict,
    Target,
    TargetOption,
    Traceback,
    TuneOption,
    Tuning,
    Verbose,
    modes_of,
    options_of,
)
from .files import as_json, check_readable, check_writable, write
from .verify import not_equal


@guarded
def optimize(
    model: ModelFile,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.py", help="The file to write (default: MODEL_new.py beside it)."),
    ] = None,
    target: TargetOption = Target.auto,
    report: Annotated[
        Path | None,
        typer.Option("--json", metavar="REPORT.json", help="Also write what was done, verified or not, as JSON."),
    ] = None,
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="Time the result where there is a GPU.")] = True,
    modes: ModesOption = "eager",
    gradients: Annotated[
        bool,
        typer.Option("--gradients/--no-gradients", help="Kernels for backward too; without, PyTorch's operators do it."),
    ] = True,
    forward_only: ForwardOnly = False,
    tune: TuneOption = Tuning.auto,
    tuning_record: Annotated[
        Path | None,
        typer.Option("--tuning-record", metavar="FILE", help="Take what timing chose from this file, and add what it lacks."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The file as predicted, verified with one seed: nothing is tuned and nothing timed.")
    ] = False,
    precision: PrecisionOption = PrecisionMode.eager,
    arithmetic: ArithmeticOption = ArithmeticMode.auto,
    arch: ArchOption = "",
    all_variants: Annotated[
        bool, typer.Option("--all-variants", help="Verify every variant that tuning could choose, one at a time; status 1 if one is wrong.")
    ] = False,
    strict: Strict = False,
    sanitize: SanitizeOption = None,
    assume_finite: AssumeFinite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Write MODEL_new.py: the same model, its memory-bound operators fused into a few CUDA kernels.

    The file is written only after its kernels were run and its results and gradients were found equal to the model's.
    """
    more = {"assume_finite": assume_finite, "bench": bench, "gradients": gradients, "tune": tune.value, "arithmetic": arithmetic.value}
    options = options_of(target, sanitize, forward_only=forward_only, precision=precision.value, arch=arch, **more)
    options = options.quickly() if quick else options
    check_readable(model)
    output = output or model.with_name(f"{model.stem}_new.py")
    check_writable(output, reads=[model])
    if report:
        check_writable(report, reads=[model, output])
    if tuning_record:
        check_writable(tuning_record, reads=[model, output, *([report] if report else [])])
    if sanitize and needs_runtime(sanitize):
        return under(sanitize.value, Screen(quiet))

    pipeline = the_line()
    from ...frontend.problem import load_problem
    from .health import needs_a_toolchain

    needs_a_toolchain(options.target)
    options = replace(options, tuning_record=tuning_record, modes=modes_of(modes), all_variants=all_variants, output=output.absolute())
    console = Screen(quiet)
    with stages(console, pipeline.ahead(options)) as progress:
        progress("load", str(model))
        problem = load_problem(model)
        with unsaid():
            run = pipeline.optimize(problem, options, progress)

    show_report(console, run.report)
    show_verdict(console, run.verdict, verbose)
    show_variants(console, run.variants)
    files = {output: run.text} if run.verdict.passed else {}
    if report:
        files[report] = as_json(run.report)
    for path in files:
        if path.exists():
            say(console, f"replacing {path}")
    write(files)
    show_degraded(console, run.degraded)
    if not run.verdict.passed:
        return not_equal(run.verdict, f"{output} was not written")
    say(console, f"wrote {output}", "bold green")
    wrong = [one.name for one in run.variants if one.wrong]
    if wrong:
        return complain(f"wrong variants: {', '.join(wrong)}; {output}, another one, is equal to the model", NOT_EQUAL)
    if strict and run.degraded:
        return complain(f"--strict: {run.degraded[0]}", NOT_EQUAL)
    return 0


@guarded
def explain(
    model: ModelFile,
    target: TargetOption = Target.auto,
    arch: ArchOption = "",
    assume_finite: AssumeFinite = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Show the graph, what each kernel would replace, its bytes, operations and predicted time; build nothing."""
    options = options_of(target, None, assume_finite=assume_finite, arch=arch)

    pipeline = the_line()
    from ...frontend.problem import load_problem

    say(Screen(), pipeline.explain(load_problem(model), options))
    return 0
