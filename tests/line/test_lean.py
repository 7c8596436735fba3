"""What a forward costs the CPU besides the kernels, and that saving it skips no check."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
import sympy
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fusewright.driver.pipeline import compile_problem
from fusewright.emit.launches import padded
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

N = sympy.Symbol("n", integer=True, positive=True)
FILE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x):
        return torch.tanh(self.inner(x)) * self.scale


def get_inputs():
    return [torch.randn(5, 6)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return made_of(FILE, tmp_path_factory.mktemp("lean") / "model.py")


def made_of(source: str, path: Path) -> SimpleNamespace:
    path.write_text(source)
    problem = load_problem(path)
    text = compile_problem(problem, Options())[2].text
    return SimpleNamespace(text=text, problem=problem, candidate=load_candidate(text, "host", name="model.py"))


def launched(made: SimpleNamespace, change: object) -> list[str]:
    """Change a fresh model and the original in the same way; they must agree. Returns what was launched."""
    new, old = made.candidate.build_model(made.problem), made.problem.model()
    new.load_state_dict(old.state_dict())
    for model in (new, old):
        change(model)  # type: ignore[operator]
    x = made.problem.inputs()[0].to(next(old.parameters()).dtype)
    with made.candidate.launches() as kernels:
        got = new(x)
    torch.testing.assert_close(got, old(x), rtol=1e-4, atol=1e-5)
    for a, b in zip(new.state_dict().values(), old.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return kernels


def test_the_plan_runs_where_nothing_changed(made: SimpleNamespace) -> None:
    assert launched(made, lambda model: None)


def test_a_parametrized_weight_is_computed_by_its_module(made: SimpleNamespace) -> None:
    assert launched(made, lambda model: parametrizations.weight_norm(model.inner[0]))


def test_a_module_may_be_replaced(made: SimpleNamespace) -> None:
    def replace_norm(model: nn.Module) -> None:
        torch.manual_seed(4)
        model.inner[1] = nn.BatchNorm1d(8)
        nn.init.normal_(model.inner[1].weight)

    assert launched(made, replace_norm)


def other_shape(model: nn.Module) -> None:
    torch.manual_seed(5)
    model.inner[0], model.inner[1], model.scale = nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Parameter(torch.rand(7))


def other_rank(model: nn.Module) -> None:
    torch.manual_seed(5)
    model.scale = nn.Parameter(torch.rand(5, 8))


OUTSIDE = {
    "another type": lambda model: model.double(),
    "another shape": other_shape,
    "another rank": other_rank,
    "evaluation": lambda model: model.eval(),
    "evaluation of one module": lambda model: model.inner[1].eval(),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_lies_outside_the_plan_runs_the_original(made: SimpleNamespace, name: str) -> None:
    assert launched(made, OUTSIDE[name]) == []


def test_attributes_are_not_looked_up_one_by_one(made: SimpleNamespace) -> None:
    ours = made.text.split("class ModelNew")[1]
    assert not re.search(r"self\.(inner|scale)", ours)
    assert "torch.ops" not in ours and "aten.linear" not in ours


def test_what_only_kernels_see_is_one_allocation() -> None:
    path = Path(__file__).parents[2] / "zoo" / "network" / "residual_block.py"
    text = compile_problem(load_problem(path), Options())[2].text
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if "# what only kernels see" in line]
    assert starts
    for i in starts:
        words = re.search(r"_empty\(\((\d+),\)", lines[i])
        end = 0
        assert re.fullmatch(r"    (\w+ = )+scratch\.data_ptr\(\)", lines[i + 1])
        while part := re.fullmatch(r"    (?:\w+ = )+\w+ \+ (\d+)", lines[i + 2]):
            assert int(part[1]) % 256 == 0
            end, i = end + int(part[1]), i + 1
        assert words is None or end < 4 * int(words[1])


def test_transforms_of_torch_func_run_the_original(tmp_path: Path) -> None:
    made = made_of(FILE.replace("nn.BatchNorm1d", "nn.LayerNorm"), tmp_path / "model.py")  # a transform lets no buffer change
    assert launched(made, lambda model: None)
    new, old = made.candidate.build_model(made.problem), made.problem.model()
    new.load_state_dict(old.state_dict())
    (x,) = made.problem.inputs()

    def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
        square = lambda p: torch.func.functional_call(model, p, (x,)).square().sum()  # noqa: E731
        return torch.func.grad(square)({name: p.detach() for name, p in model.named_parameters()})

    with made.candidate.launches() as kernels:
        found = gradients(new)
    assert kernels == []
    for name, gradient in gradients(old).items():
        torch.testing.assert_close(found[name], gradient)


UPSTREAM = {
    "of a sum": lambda y: y.sum(),
    "of a part": lambda y: y[:, 1:3].sum(),
    "of a row repeated": lambda y: (y.sum(0) * torch.arange(8.0)).sum(),
    "turned": lambda y: (y.t() * torch.arange(40.0).reshape(8, 5)).sum(),
}


@pytest.mark.parametrize("name", UPSTREAM)
def test_gradients_of_results_in_any_layout(made: SimpleNamespace, name: str) -> None:
    new, old = made.candidate.build_model(made.problem), made.problem.model()
    new.load_state_dict(old.state_dict())
    (x,) = made.problem.inputs()
    with made.candidate.launches() as kernels:
        UPSTREAM[name](new(x)).backward()
    UPSTREAM[name](old(x)).backward()
    assert any(kernel.endswith("_grad") for kernel in kernels)
    for a, b in zip(new.parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "found"),
    [
        (4, 256),
        (512, 512),
        (16 * N, 16 * N),
        (16 * N * (N - 2), 16 * N * (N - 2)),
        (4 * N, "(4 * n + 255) // 256 * 256"),
        (16 * N + 8, "(8 * (2 * n + 1) + 255) // 256 * 256"),
    ],
)
def test_parts_of_an_allocation_begin_where_wide_loads_may(size: object, found: object) -> None:
    assert padded(size) == found  # type: ignore[arg-type]


def test_a_launch_finds_function_stream_and_addresses(made: SimpleNamespace) -> None:
    space: dict[str, object] = {}
    exec(made.text, space)
    calls: list[tuple[object, ...]] = []

    def entry(packed: bytes) -> bytes | None:
        values = struct.unpack("3q", packed)
        calls.append(values)
        return b"out of luck" if values[1] == 13 else None

    library = SimpleNamespace(some_kernel_entry=entry)
    space["_library"] = lambda *part: library
    space["_current_device"] = lambda: 5
    space["_raw_stream"] = lambda index: 72 + index
    x = torch.zeros(3)
    launch = space["_launch"]
    launch("some_kernel", x, 3)  # type: ignore[operator]
    launch("some_kernel", x, 4)  # type: ignore[operator]
    assert calls == [(x.data_ptr(), 3, 77), (x.data_ptr(), 4, 77)]
    with pytest.raises(RuntimeError, match="some_kernel: out of luck"):
        launch("some_kernel", x, 13)  # type: ignore[operator]


def test_another_gpu_is_made_the_current_one(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    space = vars(made.candidate.module)
    current: list[str] = []

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            current.append(str(self.device))

        def __exit__(self, *_: object) -> None:
            current.append("back")

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setitem(space, "_current_device", lambda: -1 if current else 3)
    assert launched(made, lambda model: None)
    assert current == ["cpu", "back"]


NETWORK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(24) for _ in range(4)])

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = torch.tanh(norm(layer(x)))
        return x


def get_inputs():
    return [torch.rand(6, 24)]


def get_init_inputs():
    return []
"""


def test_kernels_of_one_shape_stand_in_the_file_once(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(NETWORK)
    emitted = compile_problem(load_problem(tmp_path / "model.py"), Options())[2]
    assert emitted.text.count('_launch("layer_norm_tanh_fwd", ') == 4
    assert [fact.name for fact in emitted.kernels] == ["layer_norm_tanh_fwd"]
    one = compile_problem(load_problem(one_layer(tmp_path)), Options())[2]
    assert emitted.kernels[0].bytes == 4 * one.kernels[0].bytes


def one_layer(folder: Path) -> Path:
    (folder / "one.py").write_text(NETWORK.replace("range(4)", "range(1)"))
    return folder / "one.py"
