"""Every pointwise record against the aten operator it stands for, over awkward values, all compiled as one source.

The text of a model is made from the records themselves: one output for each target and each choice of its numbers. Its
kernels are built for the host and compared with PyTorch in float64, element by element, with a tolerance in ulps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

from fusewright.autograd import plan_joint
from fusewright.emit import emit
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import Problem, load_problem
from fusewright.ops import registry
from fusewright.ops.lower import lower
from fusewright.schedule.planner import plan
from fusewright.verify.budget import ulp
from fusewright.verify.candidate import load_candidate

ULPS = 4.0  # what CUDA promises for its functions is 1 to 4 ulps; an expression of several may also err as eager does
TINY, LARGE = [0.0, 1e-40, 1e-30, 1e-7], [20.5, 88.0, 104.0, 1e4, 1e10, 3e38, math.inf]
POSITIVE = [*TINY, 0.2, 0.5, 0.9999, 1.0, 1.5, 2.5, 3.0, 6.5, *LARGE]

# Numbers for arguments that are no tensors, each choice one output; what is not listed takes the schema's defaults.
# All are exact in every type, so that a number means the same to the kernel and to the reference.
NUMBERS: dict[str, list[dict[str, Any]]] = {
    "aten.add.Tensor": [{}, {"alpha": 0.5}],
    "aten.sub.Tensor": [{}, {"alpha": 2}],
    "aten.rsub.Tensor": [{}, {"alpha": 0.5}],
    "aten.pow.Tensor_Scalar": [{"exponent": e} for e in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 2.75)],
    "aten.round.decimals": [{"decimals": n} for n in (0, 2, -1)],
    "aten.clamp.default": [{"min": -0.5, "max": 2.0}, {"min": 0.25}, {"max": 0.75}, {"min": 2.0, "max": -1.0}],
    "aten.clip.default": [{"min": -0.5, "max": 2.0}],
    "aten.clamp.Tensor": [{"min": "y", "max": "z"}, {"min": "y"}, {"max": "y"}],
    "aten.clip.Tensor": [{"min": "y", "max": "z"}],
    "aten.div.Tensor_mode": [{"rounding_mode": mode} for mode in (None, "floor", "trunc")],
    "aten.div.Scalar_mode": [{"other": 0.75, "rounding_mode": mode} for mode in ("floor", "trunc")],
    "aten.gelu.default": [{"approximate": "none"}, {"approximate": "tanh"}],
    "aten.elu.default": [{}, {"alpha": 0.75}, {"alpha": 1.5, "scale": 2.0, "input_scale": 0.5}],
    "aten.celu.default": [{}, {"alpha": 0.5}],
    "aten.leaky_relu.default": [{"negative_slope": 0.25}],
    "aten.softplus.default": [{}, {"beta": 2.0, "threshold": 5.0}],
    "aten.hardtanh.default": [{}, {"min_val": -0.25, "max_val": 4.0}],
    "aten.addcmul.default": [{}, {"value": 0.5}],
    "aten.addcdiv.default": [{}, {"value": 0.5}],
    "aten.floor_divide.Scalar": [{"other": n} for n in (3, -1, -4)],
    "aten.fmod.Scalar": [{"other": n} for n in (3, -1, -4)],
    "aten.remainder.Scalar": [{"other": n} for n in (3, -1, -4)],
    "aten.__lshift__.Scalar": [{"other": n} for n in (0, 3, 7, 31, 70, -1)],
    "aten.__rshift__.Scalar": [{"other": n} for n in (0, 3, 7, 31, 70, -1)],
}
FILLED = {"other": 0.75, "self": 1.25, "weight": 0.25, "lambd": 0.5, "threshold": 0.25, "value": 2.0}
FILLED |= {"min": -0.5, "max": 0.75}
WHOLE = {**dict.fromkeys(FILLED, 2), "other": 3, "min": -4, "max": 6}


@dataclass(frozen=True)
class Case:
    """One output of the model: a target with its numbers."""

    target: OpOverload
    numbers: tuple[tuple[str, Any], ...]

    @property
    def intermediate(self) -> bool:
        """A sum of products: what overflows or cancels in between depends on the order of operations."""
        named = any(word in str(self.target) for word in ("addcmul", "addcdiv", "lerp", "hypot"))
        return named or "alpha" in dict(self.numbers)

    def text(self) -> str:
        """The call as Python: tensors are x, y, z in the order of the schema."""
        tensors, words, given = iter("xyz"), [], dict(self.numbers)
        for argument in self.target._schema.arguments:
            if argument.name in given:
                value = given[argument.name]
                words.append(f"{argument.name}={value if value in ('y', 'z') else repr(value)}")
            elif str(argument.type) == "Tensor":
                words.append(f"{argument.name}={next(tensors)}")
        return f"{str(self.target).replace('aten.', 'torch.ops.aten.', 1)}({', '.join(words)})"


def cases(whole: bool = False) -> Iterator[Case]:
    for target, record in registry.RECORDS.items():
        if not record.pointwise or not isinstance(target, OpOverload):
            continue
        for given in NUMBERS.get(str(target), [{}]):
            numbers = {}
            for argument in target._schema.arguments:
                is_tensor = str(argument.type) in ("Tensor", "Optional[Tensor]")
                if argument.name in given:
                    value = given[argument.name]
                    numbers[argument.name] = int(value) if whole and isinstance(value, float) else value
                elif not is_tensor and not argument.has_default_value():
                    numbers[argument.name] = (WHOLE if whole else FILLED)[argument.name]
            yield Case(target, tuple(numbers.items()))


def model_text(chosen: list[Case], dtype: torch.dtype) -> str:
    lines = "\n".join(f"            {case.text()}," for case in chosen)
    return f"""import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y, z):
        return (
{lines}
        )


def get_inputs():
    return [torch.ones(8, dtype={dtype}) for _ in range(3)]


def get_init_inputs():
    return []
"""


def awkward(dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Three tensors that meet every pair of awkward values."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        values = torch.tensor([False, True])
    elif not dtype.is_floating_point:
        values = torch.cat([torch.arange(-7, 8), torch.tensor([-1000003, 123456789, 2**40, -(2**40)])])
    else:
        special = torch.tensor([*POSITIVE, *(-v for v in POSITIVE), math.nan], dtype=torch.float64)
        values = torch.cat([special, torch.randn(32, generator=generator, dtype=torch.float64) * 3])
    values = values.to(dtype)
    x, y = values.repeat(len(values)), values.repeat_interleave(len(values))
    return [x, y, y[torch.randperm(len(y), generator=generator)]]


def accepted(chosen: list[Case], inputs: list[torch.Tensor]) -> list[Case]:
    """Those that PyTorch itself takes in this type, and its exporter."""
    found = []
    for case in chosen:
        try:
            evaluate(case, inputs)
            evaluate(case, [x.to("meta") for x in inputs])
        except (RuntimeError, NotImplementedError):
            continue
        found.append(case)
    return found


def evaluate(case: Case, inputs: list[torch.Tensor]) -> torch.Tensor:
    return eval(case.text(), {"torch": torch, **dict(zip("xyz", inputs, strict=True))})


def run(
    chosen: list[Case], dtype: torch.dtype, folder: Path, inputs: list[torch.Tensor]
) -> tuple[list[torch.Tensor], int]:
    """The model's outputs by its host kernels, and how many calls were left to PyTorch."""
    path = folder / f"every_{str(dtype).removeprefix('torch.')}.py"
    path.write_text(model_text(chosen, dtype))
    problem: Problem = load_problem(path)
    model = problem.model()
    made = plan(lower(capture(model, problem.inputs(), str(path))))
    candidate = load_candidate(emit(plan_joint(made, model, gradients=False), problem.source, model).text, "host", name=path.name)
    with torch.no_grad(), candidate.launches() as launched:
        results = candidate.build_model(problem)(*inputs)
    assert launched, "nothing was fused"
    return list(results), len(made.calls)


def mismatch(case: Case, got: torch.Tensor, inputs: list[torch.Tensor], ulps: float) -> str:
    """What is wrong with a result, or nothing. Where eager itself is inexact, four times its error is allowed."""
    eager = evaluate(case, inputs)
    if got.dtype != eager.dtype or got.shape != eager.shape:
        return f"{got.dtype} {tuple(got.shape)} instead of {eager.dtype} {tuple(eager.shape)}"
    if not eager.dtype.is_floating_point:
        different = (got != eager).nonzero().flatten()
        return describe(case, inputs, got, eager, int(different[0])) if len(different) else ""
    exact = evaluate(case, [x.double() if x.is_floating_point() else x for x in inputs]).double()
    value, own = got.double(), eager.double()
    rounded = exact.to(eager.dtype).double()
    same_kind = (value.isnan() & own.isnan()) | (value == own) | (value.isnan() & rounded.isnan()) | (value == rounded)
    error, eager_error = (value - exact).abs(), (own - exact).abs().nan_to_num(0.0, 0.0, 0.0)
    close = error <= ULPS * torch.maximum(eager_error, ulps * ulp(rounded.nan_to_num(0.0, 0.0, 0.0), eager.dtype))
    right = same_kind | (close & value.isfinite())
    if case.intermediate:
        x, y, z = (t.double() for t in inputs)
        terms = torch.stack([x, y, z, y * z, y / z, x * z]).abs()
        largest = terms.nan_to_num(0.0, 0.0, 0.0).amax(0)
        right |= (error <= ULPS * ulp(largest, eager.dtype)) | (largest > torch.finfo(eager.dtype).max / 4)
    bad = (~right).nonzero().flatten()
    return describe(case, inputs, got, exact, int(bad[0])) + f" ({len(bad)} elements)" if len(bad) else ""


def describe(case: Case, inputs: list[torch.Tensor], got: torch.Tensor, expected: torch.Tensor, at: int) -> str:
    values = ", ".join(f"{name} = {x[at].item()!r}" for name, x in zip("xyz", inputs, strict=True))
    return f"{case.text()}: got {got[at].item()!r}, expected {expected[at].item()!r} at {values}"


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str)
def test_every_record_on_floats(dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = awkward(dtype)
    chosen = accepted(list(cases()), inputs)
    assert len({case.target for case in chosen}) > 80
    results, calls = run(chosen, dtype, tmp_path, inputs)
    assert calls == 0, "a pointwise record declined floats"
    ulps = 8.0 if dtype is torch.float64 else 1.0  # the reference is in float64 itself, and as inexact
    wrong = [mismatch(case, got, inputs, ulps) for case, got in zip(chosen, results, strict=True)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
@pytest.mark.sampled(2)
def test_every_record_on_whole_numbers(dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = awkward(dtype)
    chosen = accepted(list(cases(whole=True)), inputs)
    results, _ = run(chosen, dtype, tmp_path, inputs)
    wrong = [mismatch(case, got, inputs, 2.0) for case, got in zip(chosen, results, strict=True)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_sample_of_records_on_halves(dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = awkward(dtype)
    chosen = accepted(list(cases())[::3], inputs)
    results, _ = run(chosen, dtype, tmp_path, inputs)
    wrong = [mismatch(case, got, inputs, 1.0) for case, got in zip(chosen, results, strict=True)]
    assert not any(wrong), "\n".join(filter(None, wrong))
