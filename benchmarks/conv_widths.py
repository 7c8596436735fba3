"""What rows cost that do not begin at whole sectors of memory: one convolution of ours at several widths.

PYTHONPATH=src python3 benchmarks/conv_widths.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from founding import median_ms

from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

CASES = [(128, 1, 64), (128, 0, 64), (122, 0, 64), (130, 0, 64), (127, 0, 64), (128, 1, 8), (128, 0, 8), (122, 0, 8), (130, 0, 8)]


def main() -> None:
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", tempfile.mkdtemp())
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    source = Path("benchmarks/plain/conv3x3_64.py").read_text()
    for size, padding, channels in CASES:
        path = Path(tempfile.mkdtemp()) / "model.py"
        sizes = f"(64, {channels}, 64, {size})"
        path.write_text(source.replace("(32, 64, 64, 128)", sizes).replace("padding=1", f"padding={padding}"))
        problem = load_problem(path)
        front = read_problem(problem, Options(gradients=False))
        own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target))
        space: dict[str, Any] = {"__name__": "emitted"}
        exec(compile(front.finish(Choices(own=own), gradients=False)[1].text, "emitted", "exec"), space)
        new = space["ModelNew"](*problem.namespace.get_init_inputs()).cuda()
        x = problem.inputs()[0].cuda()
        with torch.no_grad():
            ms, count = median_ms(lambda new=new, x=x: new(x), flush), new(x).numel()
        print(f"{size} pad {padding} in {channels}: {ms:.4f} ms, {count * 4 / ms / 1e9:.2f} TB/s written", flush=True)


if __name__ == "__main__":
    main()
