"""What goes wrong between CUDA source and a host library."""

from __future__ import annotations


class HostCompileError(RuntimeError):
    """g++ does not take the source. `line` is the line of the CUDA source, where known."""

    def __init__(self, what: str, *, line: int | None = None, source: str = "", compiler_output: str = "") -> None:
        place = f"{SOURCE_NAME}:{line}: " if line else ""
        lines = source.splitlines()
        quoted = f"\n    {lines[line - 1].strip()}" if line and line <= len(lines) else ""
        super().__init__(f"{place}{what}{quoted}")
        self.line = line
        self.compiler_output = compiler_output


SOURCE_NAME = "kernels.cu"  # what compiler, sanitizers and messages call the CUDA source
