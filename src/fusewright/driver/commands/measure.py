"""`bench`, `report` and `suite`: times, pages and many models."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ...errors import Refused
from ..console import Screen, say, stages
from .again import alone_again
from .app import INTERRUPTED, NOT_EQUAL, complain, guarded
from .arguments import (
    Alone,
    ArchOption,
    ArithmeticMode,
    ArithmeticOption,
    MemoryLimit,
    ModelFile,
    ModesOption,
    PrecisionMode,
    PrecisionOption,
    Quiet,
    SanitizeOption,
    Strict,
    Target,
    TargetOption,
    TimeLimit,
    Traceback,
    Verbose,
    modes_of,
    options_of,
)
from .files import as_json, check_readable, check_writable, staged, strict_json, write


@guarded
def bench(
    model: ModelFile,
    candidates: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[NEW.py ...]", help="Files that define ModelNew; without one, only the baselines."),
    ] = None,
    modes: ModesOption = "eager,compile",
    results: Annotated[
        Path | None,
        typer.Option("--json", metavar="OUT.json", help="Also write everything that was measured, for `report`."),
    ] = None,
    backward: Annotated[bool, typer.Option("--backward/--no-backward", help="Time forward plus backward too.")] = True,
    builds: Annotated[bool, typer.Option("--builds", help="Time a cold and a warm build of each candidate.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="How long to time for.")] = 10.0,
    time_limit: TimeLimit = 1800.0,
    memory_limit: MemoryLimit = 64.0,
    alone: Alone = True,
    quiet: Quiet = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Time MODEL.py and candidates side by side: interleaved, every result checked, with confidence intervals.

    Exit status 1 if a candidate's time does not stand: a wrong result, or faster than the roofline.
    """
    files = [model, *(candidates or [])]
    for path in files:
        check_readable(path)
    if results:
        check_writable(results, reads=files)

    from ...bench.comparison import needs_a_gpu
    from ...report.report import table
    from ..bench import bench_files

    chosen = modes_of(modes)
    needs_a_gpu()
    if alone and candidates:
        return alone_again(candidates[0], time_limit, memory_limit)
    console = Screen(quiet)
    with stages(console) as progress:
        timing, record = bench_files(
            model, files[1:], chosen, seconds=seconds, backward=backward, builds=builds, progress=progress
        )
    record = strict_json(record)
    for line in table([record]):
        say(console, line)
    if results:
        write({results: as_json(record)})
        say(console, f"wrote {results}", "bold green")
    fallen = [row for row in timing.candidates if not row.stands]
    return complain(f"{fallen[0].name}: {fallen[0].verdict}", NOT_EQUAL) if fallen else 0


@guarded
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN.json ...", help="What optimize, bench and suite wrote by --json.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.html", help="Write the page here; without it, only the table."),
    ] = None,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Show runs: a compact table here, and with -o one self-contained page with pictures, charts and the CUDA.

    Of a suite: its table, how the ratios are distributed, the slowest models and what failed.
    """
    if output:
        check_writable(output, reads=runs)

    from ...report.report import report as draw

    html, lines = draw(runs)
    console = Screen()
    for line in lines:
        say(console, line)
    if output:
        write({output: html})
        say(console, f"wrote {output}", "bold green")
    return 0


@guarded
def suite(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Every model file in it and below it.")],
    results: Annotated[
        Path | None,
        typer.Option("--json", metavar="OUT.json", help="Write the results here, one by one as they come."),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", min=1, help="Models at a time, on each GPU if there are several; more than 1 are not timed or tuned."),
    ] = 1,
    ray: Annotated[
        str,
        typer.Option("--ray", metavar="ADDRESS", help="Run on the Ray cluster there: host:port, auto, or local for one of this machine."),
    ] = "",
    target: TargetOption = Target.auto,
    time_limit: Annotated[float, typer.Option("--time-limit", metavar="S", help="Seconds for one model.")] = 600.0,
    memory_limit: Annotated[float, typer.Option("--memory-limit", metavar="GB", help="Memory for one model.")] = 24.0,
    resume: Annotated[bool, typer.Option("--resume", help="Leave out what --json holds as verified.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A folder to keep the emitted files in.")
    ] = None,
    bench: Annotated[bool, typer.Option("--bench/--no-bench", help="Time the results where there is a GPU.")] = True,
    precision: PrecisionOption = PrecisionMode.eager,
    arithmetic: ArithmeticOption = ArithmeticMode.auto,
    arch: ArchOption = "",
    strict: Strict = False,
    sanitize: SanitizeOption = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    traceback: Traceback = False,
) -> int:
    """Optimise every model of a folder, each in a process of its own, and end in a table of what came of it.

    A model that crashes, hangs or takes too much memory costs only its own line. Every visible GPU has a worker of its own; --ray spreads
    models over the machines of a cluster.
    """
    options = options_of(target, sanitize, arch=arch)
    if resume and not results:
        raise Refused("--resume leaves out what --json holds as verified, and no --json is given")
    if results:
        check_writable(results, reads=[])
    if output:
        output.mkdir(parents=True, exist_ok=True)
        staged(output / "new.py", "").unlink()

    from ..on_ray import cluster
    from ..suite import Settings, run_suite, table

    console = Screen(quiet)
    one, limits = jobs == 1, (time_limit, memory_limit)
    settings = Settings(options.target, *limits, bench and one, options.sanitize, output, one, precision.value, arch, arithmetic.value)
    try:
        with cluster(ray) if ray else nullcontext() as runner:
            found = run_suite(folder, results, jobs, settings, resume=resume, console=console, runner=runner)
    except KeyboardInterrupt:
        kept = f"what was done is in {results}; go on with --resume" if results else "nothing was kept (no --json)"
        return complain(f"interrupted; {kept}", INTERRUPTED)
    for line in table(found):
        say(console, line)
    fine = all(result.verified and not (strict and result.degraded) for result in found)
    return 0 if fine else NOT_EQUAL
