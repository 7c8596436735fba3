"""What nvcc makes of the kernels of emitted files, before and after a change: registers, spills, instructions.

    PYTHONPATH=src python3 benchmarks/texts.py write BEFORE MODEL ...    (then change something, and write AFTER)
    python3 benchmarks/machine_code.py BEFORE AFTER [--arch sm_90a --arch sm_80] [--cache FOLDER] [--all]

Both folders are those of `benchmarks/texts.py write`. A kernel of one is compared with that of the same place in the other, whatever
its name. A table has a row for each kernel whose machine code differs (--all: for every kernel): registers, bytes spilled, instructions
in all and in loops, loads of each innermost loop. Exit status 1 if one has more spills, or more instructions in loops that are not
there because the compiler unrolled a loop further. Needs nvcc and cuobjdump (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm),
and no GPU. What was compiled is kept in the cache.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

FLAGS = ("-std=c++17", "-O3", "-Xptxas", "-v")


@dataclass(frozen=True)
class Code:
    """One kernel's machine code."""

    registers: int
    spilled: int
    instructions: int
    in_loops: int
    digest: str  # of the instructions
    loads: str  # from memory in each innermost loop, in order

    @property
    def loads_in_loops(self) -> int:
        return sum(map(int, self.loads.split()))


def units(text: str) -> dict[str, str]:
    """The CUDA sources of an emitted file, by name; what is built with more of it counts as one more."""
    found: dict[str, str] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name.startswith("_CUDA_"):
                parts = [statement.value.left, statement.value.right] if isinstance(statement.value, ast.BinOp) else [statement.value]
                found[name] = "".join(found[p.id] if isinstance(p, ast.Name) else ast.literal_eval(p) for p in parts)
    for name in ("_CUDA_SUPPORT", "_CUDA_SAVING"):
        found.pop(name, None)
    saving = {f"{name} SAVING": f"#define SAVING\n{source}" for name, source in found.items() if "#ifdef SAVING" in source}
    return {name: source for name, source in (found | saving).items() if "__global__" in source}


def compiled(source: str, arch: str, tool: str, cache: Path) -> dict[str, Code]:
    """By kernel, in the order of the source: as `number<template arguments>`."""
    key = cache / f"{hashlib.sha256(source.encode()).hexdigest()[:24]}-{arch}.json"
    if not key.exists():
        with tempfile.TemporaryDirectory() as folder:
            file, cubin = Path(folder, "unit.cu"), Path(folder, "unit.cubin")
            file.write_text(source)
            virtual = arch.replace("sm_", "compute_")
            command = ["nvcc", *FLAGS, f"-gencode=arch={virtual},code={arch}", "-cubin", "-o", str(cubin), str(file)]
            made = subprocess.run(command, capture_output=True, text=True)
            if made.returncode:
                raise SystemExit(made.stderr[-4000:])
            sass = subprocess.run([tool, "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
        cache.mkdir(parents=True, exist_ok=True)
        key.write_text(json.dumps({name: asdict(code) for name, code in read(made.stderr, sass, source).items()}))
    return {name: Code(**code) for name, code in json.loads(key.read_text()).items()}


def read(report: str, sass: str, source: str) -> dict[str, Code]:
    resources = {
        name: (int(registers), int(stores) + int(loads))
        for name, stores, loads, registers in re.findall(
            r"entry function '(\S+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers", report, flags=re.DOTALL
        )
    }
    found = {}
    for part in re.split(r"^\s*Function : ", sass, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        lines = [(int(at, 16), line.strip()) for at, line in re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", body)]
        lines = lines[: last_instruction(lines)]
        loops = [(target, at) for at, line in lines for target in jumps(line) if target <= at]
        inside = sum(any(first <= at <= last for first, last in loops) for at, _ in lines)
        digest = hashlib.sha256("\n".join(line for _, line in lines).encode()).hexdigest()[:16]
        innermost = [(a, b) for a, b in loops if not any((a, b) != other and a <= other[0] and other[1] <= b for other in loops)]
        reads = [(at, line) for at, line in lines if re.search(r"\b(LDG|LDGSTS)\b", line)]
        loads = " ".join(str(sum(a <= at <= b for at, _ in reads)) for a, b in sorted(set(innermost)))
        found[name.strip()] = Code(*resources[name.strip()], len(lines), inside, digest, loads)
    readable = dict(zip(found, subprocess.run(["c++filt", *found], capture_output=True, text=True).stdout.splitlines(), strict=True))
    places = {readable[name]: placed(readable[name], source) for name in found}
    kernels = sorted(set(places.values()))
    return {f"{kernels.index(places[readable[n]])}{arguments(readable[n])}": found[n] for n in found}


def last_instruction(lines: list[tuple[int, str]]) -> int:
    """How many there are before what only fills the last line of the instruction cache."""
    ends = [i for i, (at, line) in enumerate(lines) if line.startswith("BRA") and at in jumps(line)]
    return ends[-1] if ends else len(lines)


def jumps(line: str) -> list[int]:
    return [int(target, 16) for target in re.findall(r"\bBRA\b.*?0x([0-9a-f]+)", line)]


def name_of(readable: str) -> str:
    return re.split(r"[<(]", re.sub(r"^void ", "", readable))[0]


def arguments(readable: str) -> str:
    rest = re.sub(r"^void ", "", readable)[len(name_of(readable)) :]
    return rest.partition("(")[0]


def placed(readable: str, source: str) -> int:
    """Where the kernel is defined."""
    at = 0
    for word in name_of(readable).split("::"):
        found = re.compile(rf"(?:namespace|\bvoid\b[^;{{}}]*?)\s*\b{re.escape(word)}\b").search(source, at)
        at = found.end() if found else at
    return at


def tool_path() -> str:
    beside = [Path(folder, "nvidia", "cu13", "bin", "cuobjdump") for folder in sys.path]
    found = shutil.which("cuobjdump") or next((str(file) for file in beside if file.exists()), None)
    if found is None or shutil.which("nvcc") is None:
        raise SystemExit("nvcc and cuobjdump are needed")
    os.environ["PATH"] += f":{Path(found).parent}"  # where nvdisasm is
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--arch", action="append", metavar="sm_XX")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir(), "machine_code"))
    parser.add_argument("--all", action="store_true", help="a row for every kernel")
    given = parser.parse_args()
    tool = tool_path()
    counts = dict.fromkeys(("kernels", "identical", "fewer instructions", "as many", "more instructions", "worse"), 0)
    print(f"{'file, unit, kernel':<76} {'registers':>11} {'spilled':>9} {'instructions':>13} {'in loops':>11}  loads of each loop")
    for arch in given.arch or ["sm_90a", "sm_80"]:
        for file in sorted(given.before.glob("*.txt")):
            sides = [units((folder / file.name).read_text()) for folder in (given.before, given.after)]
            for unit in sides[0]:
                old, new = (compiled(side[unit], arch, tool, given.cache) for side in sides)
                assert old.keys() == new.keys(), f"{file.name}: other kernels, {sorted(old.keys() ^ new.keys())}"
                for kernel in old:
                    a, b = old[kernel], new[kernel]
                    unrolled = b.in_loops * a.loads_in_loops < a.in_loops * b.loads_in_loops
                    worse = b.spilled > a.spilled or (b.in_loops > a.in_loops and not unrolled)
                    order = (b.instructions > a.instructions) - (b.instructions < a.instructions)
                    which = "identical" if a.digest == b.digest else ("fewer instructions", "as many", "more instructions")[order + 1]
                    counts["kernels"] += 1
                    counts[which] += 1
                    counts["worse"] += worse
                    if given.all or a.digest != b.digest:
                        what = f"{arch} {file.stem} {unit.removeprefix('_CUDA_').lower()} {kernel}"
                        pairs = [(x, y) for x, y in zip(asdict(a).values(), asdict(b).values(), strict=True)][:4]
                        cells = [f"{x}" if x == y else f"{x} -> {y}" for x, y in pairs]
                        mark = " worse" if worse else ""
                        loads = a.loads if a.loads == b.loads else f"{a.loads} -> {b.loads}"
                        print(f"{what:<76} {cells[0]:>11} {cells[1]:>9} {cells[2]:>13} {cells[3]:>11}  {loads}{mark}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["worse"] else 0


if __name__ == "__main__":
    sys.exit(main())
