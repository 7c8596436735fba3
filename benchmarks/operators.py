"""What a call of a registered operator costs the CPU beside the lean path of the emitted file: kernels that do nothing, small tensors.

    PYTHONPATH=src python3 benchmarks/operators.py

`function`: the graph's own function. `operator`: through PyTorch's dispatcher, with a list of tensors. `as_operator`: the module around
it. `ModelNew`: the emitted file's forward, which also looks whether the model is still the one it was planned for. Microseconds, the
smallest of a few means, the columns in turn; forward under no_grad, and a forward that autograd records. No GPU is needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fusewright

ROUNDS, SECONDS = 8, 0.02  # of timing for each column: how often, how long each


class Block(nn.Module):
    """No call to the library: all its work is one kernel's."""

    def __init__(self, layers: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = torch.nn.functional.gelu(norm(x))
        return x


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            count = max(1, min(1000, int(SECONDS * 1e6 / best[name])))
            start = time.process_time()  # what others do in between does not count
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.process_time() - start) / count * 1e6)
    return best


def without_kernels(library: Any) -> None:
    """From now on they do nothing."""
    library.disabled.update([*library.launched])


def measured(layers: int) -> dict[str, float]:
    model, x = Block(layers).eval(), torch.randn(4, 16)
    operated, new = fusewright.as_operator(model, [x], target="host"), fusewright.optimize(model, [x], target="host")
    planned = operated.planned
    assert planned.infer.ours is not None and planned.forward is not None and planned.forward.ours is not None
    tensors = [*model.parameters(), x]
    calls: dict[str, Callable[[], Any]] = {
        "eager": lambda: model(x),
        "function": lambda: planned.infer.ours.run([*tensors]),  # type: ignore[union-attr]
        "operator": lambda: planned.infer.overload(tensors),
        "as_operator": lambda: operated(x),
        "ModelNew": lambda: new(x),
    }
    space = sys.modules[type(new).__module__]
    with torch.no_grad():
        for call in calls.values():
            call()
        new_library, graph_library = vars(space)["_launch"].__self__, planned.infer.ours.library
        assert new_library.launched and graph_library is not None and graph_library.launched
        without_kernels(new_library)
        without_kernels(graph_library)
        found = microseconds(calls)
    recorded = {f"{name}, recorded": calls[name] for name in ("eager", "as_operator", "ModelNew")}
    for call in recorded.values():
        call()
    without_kernels(planned.forward.ours.library)
    return found | microseconds(recorded)


def main() -> None:
    torch.set_num_threads(1)
    rows = {layers: measured(layers) for layers in (1, 2, 4)}
    names = list(rows[1])
    print("norms  " + "  ".join(f"{name:>21}" for name in names))
    for layers, found in rows.items():
        print(f"{layers:>5}  " + "  ".join(f"{found[name]:>18.1f} µs" for name in names))


if __name__ == "__main__":
    main()
