"""Emitted files under another version of PyTorch, each against the model in it. Run by that version's interpreter:

    python in_another_torch.py FILE...

For each file: one forward and one backward of `ModelNew` with its kernels on the CPU, compared with `Model`. Prints a line of JSON for
each, with the kernels that were launched; a comparison that fails ends it.
"""

from __future__ import annotations

import copy
import json
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import fusewright

SMALL = {"batch_size": 2, "depth": 9, "height": 14, "width": 14}  # of the founding models: kernels take sizes when they are called
OF_RMS = 1e-4  # docs/architecture.md: as exact as eager, or within so much of the result's rms
K = 8.0  # as verification has it


def main(paths: list[str]) -> None:
    torch.set_num_threads(1)
    for path in paths:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = checked(path)
        ours = [str(one.message) for one in caught if "original" in str(one.message)]  # what a file says where its kernels do not run
        print(json.dumps({"torch": torch.__version__, "file": path, "warned": ours, **found}), flush=True)


def checked(path: str) -> dict[str, Any]:
    space = fusewright.load(path, target="host")
    if "batch_size" in vars(space):
        vars(space).update(SMALL)
    launched = watched(space)
    torch.manual_seed(0)
    original = space.Model(*space.get_init_inputs())
    torch.manual_seed(0)
    new = space.ModelNew(*space.get_init_inputs())
    assert all(map(torch.equal, original.state_dict().values(), new.state_dict().values())), "initial values differ"
    inputs = space.get_inputs()
    exact = step(*widened(original, inputs))
    others = [step(*widened(original, inputs, seed)) for seed in range(3 if hasattr(space, "_tf32_allowed") else 0)]
    eager, found = (step(model, copy.deepcopy(inputs)) for model in (original, new))
    assert len(found) == len(eager) == len(exact)
    worst = 0.0
    for i, ((name, ours), (_, theirs), (_, true)) in enumerate(zip(found, eager, exact, strict=True)):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, f"{name}: {ours.dtype} {tuple(ours.shape)}"
        if not ours.is_floating_point():
            assert torch.equal(ours, theirs), f"{name}: whole numbers differ"
            continue
        rms = true.square().mean().sqrt().clamp(min=1e-30)
        error, *allowed = [((tensor.double() - true).abs().max() / rms).item() for tensor in (ours, theirs, *(o[i][1] for o in others))]
        budget = K * max(allowed) + OF_RMS
        assert error <= budget, f"{name}: error {error:.3g} of rms, allowed {budget:.3g}"
        worst = max(worst, error / budget)
    gradients = [*getattr(space, "_GRADIENT_KERNELS", ())]
    return {"forward": [*space._KERNELS], "gradients": gradients, "launched": sorted(set(launched)), "of_budget": worst}


def widened(model: nn.Module, inputs: list[Any], seed: int | None = None) -> tuple[nn.Module, list[Any]]:
    """In float64. With a seed, its weights and inputs are off by what TF32 may round them by, which may turn a maximum."""
    torch.manual_seed(seed or 0)

    def wide(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        x = x.detach().double()
        return x if seed is None or x.dim() < 2 else x * (1 + 2.0**-11 * (2 * torch.rand_like(x) - 1))

    new = copy.deepcopy(model).double()
    for parameter in new.parameters():
        parameter.data = wide(parameter.data)
    return new, [wide(x) for x in inputs]


def watched(space: ModuleType) -> list[str]:
    """The names of the kernels that it launches from now on."""
    found: list[str] = []
    launch = space._launch

    def noted(kernel: str, *arguments: Any) -> None:
        launch(kernel, *arguments)
        found.append(kernel.partition(" ")[0])

    space._launch = noted  # type: ignore[attr-defined]
    return found


def step(model: nn.Module, inputs: list[Any]) -> list[tuple[str, Tensor]]:
    """What a call returns, the gradients of its parameters, or of its inputs where it has none, and the buffers after it. Twice: some
    activations are saved from the first backward on."""
    given = [] if any(True for _ in model.parameters()) else [x for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
    for x in given:
        x.requires_grad_()
    for _ in range(2):
        model.zero_grad()
        for x in given:
            x.grad = None
        torch.manual_seed(1)
        results = list(tensors(model(*inputs)))
        smooth = [result for result in results if result.requires_grad]
        if smooth:
            sum(result.square().mean() for result in smooth).backward()  # type: ignore[union-attr]
    found = [(f"result {i}", result.detach()) for i, result in enumerate(results)]
    found += [(f"gradient of {name}", p.grad) for name, p in model.named_parameters() if p.grad is not None]
    found += [(f"gradient of input {i}", x.grad) for i, x in enumerate(given) if x.grad is not None]
    return found + [(name, buffer.clone()) for name, buffer in model.named_buffers()]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


if __name__ == "__main__":
    main(sys.argv[1:])
