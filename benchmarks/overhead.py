"""What an emitted file costs the CPU, forward and training step: kernels that do nothing, and all that is left is Python.

    FUSEWRIGHT_ZOO=small PYTHONPATH=src python3 benchmarks/overhead.py [--keep FOLDER] [--with FOLDER] FILE ...

The tensors are on the CPU and of small sizes; the examples are planned for their own sizes and run at smaller ones. `eager` is the
original's whole forward, in which all operators compute, if little. The rest is the emitted file's own Python: the library's calls
(convolutions, products) answer with what they gave the first time. A step is a forward and the gradients of all parameters; at a call
of the library gradients end on one side and begin anew on the other.
`--keep` leaves the emitted files in a folder; `--with` adds what an earlier run left there, as `earlier`.
Each figure is the smallest mean of a few hundred calls, the columns measured in turn; forward under no_grad.
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
from torch import Tensor, nn

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import Problem, load_problem
from fusewright.options import Options

ROUNDS, SECONDS = 40, 0.03  # of timing for each column: how often, how long each
COLUMNS = ("eager", "earlier forward", "forward", "earlier step", "step")
SMALLER = ((r"^batch_size = \d+$", "batch_size = 4"), (r"^((?:depth, )?height, width) = (.*)$", r"\1 = [8] * len((\2))"))


def stub_library(kernels: list[str], folder: Path) -> ctypes.CDLL:
    """A library whose kernels take anything and do nothing."""
    source, library = folder / "stub.c", folder / "stub.so"
    names = [name for kernel in kernels for name in (kernel, f"{kernel}_entry")]
    source.write_text("".join(f"const char* {name}() {{ return 0; }}\n" for name in names))
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library))


class Library:
    """What the library's calls gave the first time. In training each is a leaf, and what it read is an end of its own."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.leaves: list[Tensor] = []
        self.ends: list[Tensor] = []
        self.upstream: list[Tensor] = []

    def again(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if name not in self.known:
            made = function(*arguments, **named)
            if isinstance(made, Tensor) and made.requires_grad:
                made = made.detach().requires_grad_()
                self.leaves.append(made)
            self.known[name] = made
        if torch.is_grad_enabled():
            self.ends += [a for a in arguments if isinstance(a, Tensor) and a.requires_grad and not a.is_leaf]
        return self.known[name]


def without_library(text: str) -> str:
    """`y = torch.conv2d(...)` in forward or a gradient becomes `y = _again("forward y", torch.conv2d, ...)`."""
    call = re.compile(r"^( +)(\w+) = ((?:torch|aten)\.(?!empty)[\w.]+)\(", re.MULTILINE)

    def change(function: re.Match[str]) -> str:
        return call.sub(rf'\1\2 = _again("{function[1]} \2", \3, ', function[0])

    return re.sub(r"^ *def (forward|\w+_grad(?:ient)?)\((?:.*\n)(?:^ +.*\n)+", change, text, flags=re.MULTILINE)


class Emitted:
    """A file's model, made to believe that the CPU is the device and that its kernels do their work."""

    def __init__(self, text: str, problem: Problem, folder: Path) -> None:
        self.library, self.inputs = Library(), problem.inputs()
        space: dict[str, Any] = {"__name__": "emitted", "_again": self.library.again}
        exec(compile(without_library(text), "emitted", "exec"), space)
        kernels = [*space["_KERNELS"], *space.get("_GRADIENT_KERNELS", ())]
        library = stub_library(kernels, Path(tempfile.mkdtemp(dir=folder)))
        space["_library"] = lambda *source: library
        space["_on_device"] = on_cpu
        space["_raw_stream"] = lambda index: 0
        space["_current_device"] = lambda: -1
        space["_elsewhere"] = lambda tensor: tensor.get_device() != -1  # of earlier files
        space["_empty"] = torch._C._dynamo.guards._empty_strided_cpu
        torch.manual_seed(0)
        self.model: nn.Module = space["ModelNew"](*problem.namespace.get_init_inputs())
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.launched: list[str] = []
        plain = space["_launch"]
        space["_launch"] = lambda kernel, *arguments: (self.launched.append(kernel), plain(kernel, *arguments))
        if self.parameters:
            self.step()
        space["_launch"] = plain

    def forward(self) -> None:
        self.model(*self.inputs)

    def step(self) -> None:
        library = self.library
        library.ends.clear()
        with torch.enable_grad():
            result = self.model(*self.inputs)
        ends = [*library.ends, *(t for t in tensors_of(result) if t.requires_grad)]
        if not library.upstream:
            library.upstream = [torch.ones_like(end) for end in ends]
        torch.autograd.grad(ends, [*self.parameters, *library.leaves], library.upstream, allow_unused=True)


def tensors_of(result: Any) -> list[Tensor]:
    found = torch.utils._pytree.tree_leaves(result)
    return [item for item in found if isinstance(item, Tensor)]


def on_cpu(*tensors: Tensor) -> bool:
    """As an emitted file asks it of a GPU."""
    if torch.is_autocast_enabled() or torch._C._are_functorch_transforms_active():
        return False
    index = tensors[0].get_device()
    return not tensors[0].is_cuda and [*map(torch.Tensor.get_device, tensors)].count(index) == len(tensors)


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, call in calls.items():
                count = max(1, min(1000, int(SECONDS * 1e6 / best[name])))
                start = time.process_time()  # what others do in between does not count
                for _ in range(count):
                    call()
                best[name] = min(best[name], (time.process_time() - start) / count * 1e6)
    return best


def smaller(text: str) -> str:
    """A model's file with the batches and images of the examples made small: Python's part is the same, and forward is quick."""
    for old, new in SMALLER:
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return text


def row(path: Path, keep: Path | None, earlier: Path | None, folder: Path) -> str:
    text = compile_problem(load_problem(path), Options())[2].text
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{path.stem}_new.py").write_text(text)
    (folder / path.name).write_text(smaller(path.read_text()))
    problem = load_problem(folder / path.name)
    files = {"": Emitted(smaller(text), problem, folder)}
    if earlier is not None:
        files["earlier "] = Emitted(smaller((earlier / f"{path.stem}_new.py").read_text()), problem, folder)
    calls: dict[str, Callable[[], Any]] = {"eager": partial(problem.model(), *problem.inputs())}
    for name, emitted in files.items():
        calls |= {f"{name}forward": emitted.forward, f"{name}step": emitted.step}
    found = microseconds(calls)
    figures = [f"{found[name]:>15.1f}" if name in found else " " * 15 for name in COLUMNS]
    return f"{path.stem[:32]:<32} {len(files[''].launched):>8} " + " ".join(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--with", type=Path, dest="earlier")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("$ FUSEWRIGHT_ZOO=small PYTHONPATH=src python3 benchmarks/overhead.py", *sys.argv[1:])
    print(f"{'CPU microseconds':<32} {'launches':>8} " + " ".join(f"{name:>15}" for name in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for path in given.files:
            print(row(path, given.keep, given.earlier, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
