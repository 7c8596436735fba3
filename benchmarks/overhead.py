"""What a forward of an emitted file costs the CPU: kernels that do nothing, and all that is left is Python.

    FUSEWRIGHT_ZOO=small PYTHONPATH=src python3 benchmarks/overhead.py [--keep FOLDER] [--with FOLDER] FILE ...

The tensors are on the CPU and of the zoo's small sizes. `eager` and `new` are whole forwards, in which the library's operators
(convolutions, products; all of eager's) compute, if little. `new, alone` is the emitted file's own Python: library calls answer
with what they gave the first time. `--keep` leaves the emitted files in a folder; `--with` adds what an earlier run left there.
Each figure is the smallest mean of a few hundred calls under no_grad, the columns measured in turn.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fusewright.options import Options
from fusewright.pipeline import compile_problem
from fusewright.problem import Problem, load_problem

ROUNDS, SECONDS = 15, 0.05  # of timing for each column: how often, how long each
COLUMNS = ("eager", "earlier", "new", "earlier, alone", "new, alone")


def stub_library(kernels: list[str], folder: Path) -> ctypes.CDLL:
    """A library whose kernels take anything and do nothing."""
    source, library = folder / "stub.c", folder / "stub.so"
    source.write_text("".join(f"const char* {kernel}() {{ return 0; }}\n" for kernel in kernels))
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    found = ctypes.CDLL(str(library))
    for kernel in kernels:
        getattr(found, kernel).restype = ctypes.c_char_p
    return found


class Stream:
    cuda_stream = 0


def without_library(text: str) -> str:
    """`y = torch.conv2d(...)` in forward becomes `y = _again("y", torch.conv2d, ...)`, which calls it once."""
    before, forward = text.rsplit("    def forward(", 1)
    call = re.compile(r"^( +)(\w+) = ((?:torch|aten)\.[\w.]+)\(", re.MULTILINE)
    return before + "    def forward(" + call.sub(r'\1\2 = _again("\2", \3, ', forward)


def emitted_model(text: str, problem: Problem, folder: Path) -> tuple[Any, list[str]]:
    """The file's model, made to believe that the CPU is the device; and the kernels that a forward launches."""
    known: dict[str, Any] = {}

    def again(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if name not in known:
            known[name] = function(*arguments, **named)
        return known[name]

    space: dict[str, Any] = {"__name__": "emitted", "_again": again}
    exec(compile(text, "emitted", "exec"), space)
    library = stub_library(list(space["_KERNELS"]), Path(tempfile.mkdtemp(dir=folder)))
    space["_library"] = lambda: library
    space["_on_device"] = on_cpu
    space["_raw_stream"] = lambda index: 0
    torch.cuda.current_device = lambda: None  # type: ignore[assignment,return-value]
    torch.cuda.current_stream = lambda device: Stream  # type: ignore[assignment,return-value]
    torch.manual_seed(0)
    model = space["ModelNew"](*problem.namespace.get_init_inputs())
    launched: list[str] = []
    plain = space["_launch"]
    space["_launch"] = lambda kernel, *arguments: (launched.append(kernel), plain(kernel, *arguments))
    with torch.no_grad():
        model(*problem.inputs())
    space["_launch"] = plain
    return model, launched


def on_cpu(*tensors: torch.Tensor) -> bool:
    """As an emitted file asks it of a GPU."""
    if torch.is_autocast_enabled():
        return False
    device = tensors[0].device
    return device.type == "cpu" and all(tensor.device == device for tensor in tensors)


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    with torch.no_grad():
        for call in calls.values():
            call()
        for _ in range(ROUNDS):
            for name, call in calls.items():
                count, start = 0, time.perf_counter()
                while (spent := time.perf_counter() - start) < SECONDS:
                    call()
                    count += 1
                best[name] = min(best[name], spent / count * 1e6)
    return best


def row(path: Path, keep: Path | None, earlier: Path | None, folder: Path) -> str:
    problem = load_problem(path)
    text = compile_problem(problem, Options())[2].text
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{path.stem}_new.py").write_text(text)
    inputs, eager = problem.inputs(), problem.model()
    texts = {"new": text}
    if earlier is not None:
        texts["earlier"] = (earlier / f"{path.stem}_new.py").read_text()
    calls: dict[str, Callable[[], Any]] = {"eager": partial(eager, *inputs)}
    launched: list[str] = []
    for name, written in texts.items():
        new, launches = emitted_model(written, problem, folder)
        alone, _ = emitted_model(without_library(written), problem, folder)
        calls |= {name: partial(new, *inputs), f"{name}, alone": partial(alone, *inputs)}
        launched = launched or launches
    found = microseconds(calls)
    figures = [f"{found[name]:>14.1f}" if name in found else " " * 14 for name in COLUMNS]
    return f"{path.stem:<26} {len(launched):>8} " + " ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--with", type=Path, dest="earlier")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("$ FUSEWRIGHT_ZOO=small PYTHONPATH=src python3 benchmarks/overhead.py", *sys.argv[1:])
    print(f"{'CPU microseconds a forward':<26} {'launches':>8} " + " ".join(f"{name:>14}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for path in given.files:
            print(row(path, given.keep, given.earlier, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
