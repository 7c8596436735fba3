"""What an emitted model holds at its peak: no more than eager, forward and in training; and nothing changes by what is freed."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import nn

import fusewright
from fusewright.autograd import lifetimes
from fusewright.autograd.lifetimes import Lifetime, arena, in_slots, most
from fusewright.bench.gpu import Gpu
from fusewright.driver.pipeline import compile_problem, read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.emit.launches import of_slot
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule.footprint import Peaks, bound, built, on_meta, peak_bytes, peaks_of, placeless

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

"""

CHAIN = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, channels, layers):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers)])

    def forward(self, x):
        for conv in self.convs:
            x = torch.tanh(conv(x)) * 0.5
        return x


def get_inputs():
    return [torch.randn({batch}, 32, 60, 60)]


def get_init_inputs():
    return [32, 6]
"""
)

FIRE = (
    HEAD
    + """
class Fire(nn.Module):
    def __init__(self, taken, squeezed, left):
        super().__init__()
        self.squeeze = nn.Conv2d(taken, squeezed, 1)
        self.narrow = nn.Conv2d(squeezed, left, 1)
        self.wide = nn.Conv2d(squeezed, left, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat([F.relu(self.narrow(x), inplace=True), F.relu(self.wide(x), inplace=True)], 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2)
        self.fires = nn.Sequential(Fire(32, 8, 16), Fire(32, 8, 16), nn.MaxPool2d(3, 2), Fire(32, 16, 32), Fire(64, 16, 32))

    def forward(self, x):
        return self.fires(F.relu(self.stem(x), inplace=True)).mean((2, 3))


def get_inputs():
    return [torch.randn({batch}, 3, 96, 96)]


def get_init_inputs():
    return []
"""
)

RESIDUAL = (
    HEAD
    + """
class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class Model(nn.Module):
    def __init__(self, channels, blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(channels) for _ in range(blocks)])

    def forward(self, x):
        return self.blocks(self.stem(x))


def get_inputs():
    return [torch.randn({batch}, 3, 48, 48)]


def get_init_inputs():
    return [16, 3]
"""
)

MLP = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return x


def get_inputs():
    return [torch.randn({batch}, 64)]


def get_init_inputs():
    return [64, 16]
"""
)

MODELS = {"chain": (CHAIN, 32, 2), "fire": (FIRE, 256, 2), "residual": (RESIDUAL, 128, 2), "mlp": (MLP, 65536, 5)}


def text_of(source: str, path: Path, choices: Choices | None = None) -> str:
    path.write_text(source)
    if choices is None:
        return compile_problem(load_problem(path), Options())[2].text
    return read_problem(load_problem(path), Options()).finish(choices)[1].text


def peaks(text: str, path: Path) -> tuple[Peaks, Peaks]:
    """Of eager and of an emitted file, at the file's own sizes, on tensors without memory."""
    problem = load_problem(path)
    given, inputs = problem.namespace.get_init_inputs(), on_meta(problem.inputs())
    space: dict[str, Any] = {"__name__": "emitted"}
    exec(text, space)
    launched = placeless(space)
    ours = peaks_of(built(space["ModelNew"], given), on_meta(inputs))
    assert launched
    return peaks_of(built(problem.namespace.Model, given), inputs), ours


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("library", [False, True])
def test_peaks_are_no_larger_than_eagers(name: str, library: bool, tmp_path: Path) -> None:
    """With our convolutions and products, and with the library's."""
    source, batch, _ = MODELS[name]
    path = tmp_path / "model.py"
    eager, ours = peaks(text_of(source.replace("{batch}", str(batch)), path, Choices() if library else None), path)
    assert eager.inference > 4 * (8 << 20), "so large that 8 MB hide nothing"
    assert ours.inference <= bound(eager.inference)
    assert eager.step is not None and ours.step is not None and ours.step <= bound(eager.step)


NORMED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return {result}


def get_inputs():
    return [torch.randn({batch}, 16, {size}, {size})]


def get_init_inputs():
    return [16]
"""
RESULTS = {
    "pointwise": "torch.relu(self.norm(self.conv(x)))",
    "softmax": "torch.softmax(self.norm(self.conv(x)), 1)",
    "permuted": "torch.relu(self.norm(self.conv(x))).permute(0, 2, 3, 1)",
    "joined": "torch.cat([torch.relu(self.norm(self.conv(x))), torch.sigmoid(self.conv(x))], 1)",
    "passed on": "self.conv(x) + torch.tanh(self.norm(x))",  # is the convolution's own gradient as well
}


def normed(result: str, batch: int, size: int) -> str:
    return NORMED.replace("{result}", RESULTS[result]).replace("{batch}", str(batch)).replace("{size}", str(size))


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_gradient_of_a_sum_is_not_copied(channels_last: bool, tmp_path: Path) -> None:
    """It is one number that stands for all, however large: kernels read it so, as eager does."""
    path, choices = tmp_path / "model.py", Choices(own=frozenset(), channels_last=channels_last)
    eager, ours = peaks(text_of(normed("pointwise", 64, 96), path, choices), path)
    assert eager.summed is not None and ours.summed is not None and ours.step is not None
    assert ours.summed <= bound(eager.summed) and ours.summed < 1.01 * ours.step


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_one_number_for_a_large_gradient(
    result: str, channels_last: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In vectors and by single elements, read along what is written and across it, and as a tensor of its own."""
    monkeypatch.setattr("fusewright.autograd.gradients.SMALL", 0)
    choices, path = Choices(own=frozenset(), channels_last=channels_last), tmp_path / "new.py"
    text = text_of(normed(result, 2, 12), tmp_path / "model.py", choices)
    path.write_text(text)
    assert ("_step = _with_step(" in text and ", 32)" in text) or (channels_last and result == "passed on")
    module = fusewright.load(path, target="host")
    torch.manual_seed(0)
    original = module.Model(16)
    new = module.ModelNew(16)
    new.load_state_dict(original.state_dict())
    exact = copy.deepcopy(original).double()
    for size in (12, 11):
        x = torch.randn(2, 16, size, size)
        weight = torch.randn_like(original(x))
        for loss in (lambda y: 3.0 * y.exp().sum(), lambda y: 3.0 * y.sum(), lambda y, weight=weight: (y * weight).sum()):
            given = ((original, x), (new, x), (exact, x.double()))
            theirs, ours, wanted = (torch.autograd.grad(loss(model(value)), list(model.parameters())) for model, value in given)
            for a, b, c in zip(theirs, ours, wanted, strict=True):  # as near to float64 as eager, but for the last bits
                assert (b - c).abs().max() <= 2 * (a - c).abs().max() + 1e-6 * c.abs().max() + 1e-9


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_peaks_on_a_gpu(name: str, tmp_path: Path) -> None:
    """The same by PyTorch's own counter: with the library's workspaces, and with what kernels of ours need."""
    source, batch, _ = MODELS[name]
    path, device = tmp_path / "model.py", Gpu(torch.device("cuda", torch.cuda.current_device()))
    (tmp_path / "new.py").write_text(text_of(source.replace("{batch}", str(batch)), path))
    module = fusewright.load(tmp_path / "new.py", target="cuda")
    inputs = [x.cuda() for x in module.get_inputs()]
    found = []
    for kind in (module.Model, module.ModelNew):
        model = kind(*module.get_init_inputs()).cuda()
        with torch.no_grad():
            upstream = torch.ones_like(model(*inputs))
        parameters = list(model.parameters())

        def infer(model: nn.Module = model) -> Any:
            with torch.no_grad():
                return model(*inputs)

        def step(model: nn.Module = model, parameters: list[nn.Parameter] = parameters, upstream: torch.Tensor = upstream) -> Any:
            return torch.autograd.grad(model(*inputs), parameters, upstream)

        for call in (infer, step):
            call()
        found.append([device.peak_bytes(call) for call in (infer, step)])
    for eager, ours in zip(*found, strict=True):
        assert ours <= bound(eager), found


def results(module: Any, times: int = 2) -> list[torch.Tensor]:
    """Of inference and of training steps."""
    torch.manual_seed(0)
    model, found = module.ModelNew(*module.get_init_inputs()), []
    torch.manual_seed(1)
    inputs = module.get_inputs()
    for _ in range(times):
        result = model(*inputs)
        upstream = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
        found += [result.detach(), *torch.autograd.grad(result, list(model.parameters()), upstream)]
    with torch.no_grad():
        return [*found, model(*inputs), *model.buffers()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.sampled(2)
def test_nothing_changes_by_what_is_freed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena in which all that may lie at one place does, everything freed early; against parts side by side, and nothing freed."""
    source, _, batch = MODELS[name]
    source = re.sub(r"torch.randn\((\d+), (\d+), \d+, \d+\)", r"torch.randn(\1, \2, 11, 13)", source.replace("{batch}", str(batch)))
    monkeypatch.setattr(lifetimes, "SLACK", 1 << 60)
    plain = text_of(source, tmp_path / "model.py")
    monkeypatch.setattr(lifetimes, "SLACK", 0)
    shared = text_of(source, tmp_path / "model.py")
    never = re.sub(r"^ +(del \w+(, \w+)*|tensors\.clear\(\).*|if kept is None:)\n", "", plain, flags=re.MULTILINE)
    assert never.count("\n") < shared.count("\n") and " del " in shared
    modules = []
    for number, text in enumerate((never, shared)):
        (tmp_path / f"new_{number}.py").write_text(text)
        modules.append(fusewright.load(tmp_path / f"new_{number}.py"))
    for one, other in zip(*map(results, modules), strict=True):
        assert torch.equal(one, other)


def test_what_was_saved_is_freed_while_backward_runs(tmp_path: Path) -> None:
    """Unless the graph is retained: then a second backward gives the same, and without that it is an error, as eager's is."""
    text_of(RESIDUAL.replace("{batch}", "2").replace("48, 48", "9, 9"), tmp_path / "model.py")
    (tmp_path / "new.py").write_text(compile_problem(load_problem(tmp_path / "model.py"), Options())[2].text)
    module = fusewright.load(tmp_path / "new.py")
    model = module.ModelNew(*module.get_init_inputs())
    parameters, (x,) = list(model.parameters()), module.get_inputs()
    for _ in range(2):  # what is kept for backward is, from the second time on
        result = model(x)
        first = torch.autograd.grad(result.sum(), parameters, retain_graph=True)
        second = torch.autograd.grad(result.sum(), parameters, retain_graph=True)
        assert all(map(torch.equal, first, second))
        third = torch.autograd.grad(result.sum(), parameters)
        assert all(map(torch.equal, first, third))
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(result.sum(), parameters)


def test_a_region_that_would_save_more_is_left_to_pytorch_in_training(tmp_path: Path) -> None:
    """A kernel would save what the library's product left and its own result; PyTorch saves the result alone."""
    source = MLP.replace("F.relu(layer(x))", "torch.tanh(layer(x))").replace("{batch}", "65536")
    text = text_of(source, tmp_path / "model.py", Choices())
    assert "torch.nn.functional.linear" in text and "would hold more memory at once" in text
    eager, ours = peaks(text, tmp_path / "model.py")
    assert eager.step is not None and ours.step is not None and ours.step <= bound(eager.step)


# ---- the counter


def work(x: torch.Tensor) -> torch.Tensor:
    first = x + 1
    second = first * 2
    del first
    return second.sum(0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_frees_are_seen(device: str) -> None:
    x = torch.zeros(1000, 10, device=device)
    whole, row = 40000, 40
    assert peak_bytes(lambda: x) == 0 and peak_bytes(lambda: x[1:].t()) == 0
    assert peak_bytes(lambda: work(x)) == 2 * whole
    assert peak_bytes(lambda: [work(x) for _ in range(5)]) == 2 * whole + 4 * row
    held: list[torch.Tensor] = []
    assert peak_bytes(lambda: [held.append(x + i) for i in range(5)]) == 5 * whole


def test_tensors_without_memory_tell_what_tensors_with_it_do() -> None:
    """Forward and a training step, in which autograd holds and frees."""
    kind, x = nn.Sequential, torch.randn(64, 32)
    parts = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16), nn.Softmax(1)]
    real = peaks_of(kind(*parts), [x])
    without = peaks_of(kind(*parts).to("meta"), [on_meta(x)])
    assert real == without and real.step is not None and real.step > real.inference > 0


# ---- the arena


def parts(*spans: tuple[int, int, int]) -> list[Lifetime]:
    return [Lifetime(f"v{i}", size, first, last) for i, (size, first, last) in enumerate(spans)]


def test_parts_at_one_place_are_never_needed_at_once() -> None:
    given = parts((4, 0, 1), (4, 1, 2), (4, 2, 3), (2, 3, 3), (2, 0, 3))
    slots = in_slots(given)
    assert sorted(part.name for slot in slots for part in slot) == [part.name for part in given] and len(slots) == 3
    for slot in slots:
        for one in slot:
            assert all(other is one or other.last < one.first or one.last < other.first for other in slot)


def test_an_arena_adds_nothing_to_the_peak() -> None:
    """A large part that is not needed at the end, where the result is made, has memory of its own."""
    mb = 1 << 20
    given, result = parts((64 * mb, 0, 1), (64 * mb, 1, 2), (mb // 2, 0, 3), (mb // 4, 1, 3)), [Lifetime("result", 64 * mb, 3, 3)]
    slots = arena(given, result, int)
    assert [part.name for slot in slots for part in slot] == ["v1", "v2", "v3"]
    least = most([*given, *result], [], int)
    assert least == 128 * mb + mb // 2 + mb // 4 and most([given[0], *result], slots, int) == least
    assert [part.name for slot in arena(given, [], int) for part in slot] == ["v0", "v1", "v2", "v3"]  # they would be beside nothing


def test_a_place_is_as_large_as_the_largest_that_lies_there() -> None:
    x, y = sympy.symbols("x y", integer=True, positive=True)
    assert of_slot([256, 1024]) == 1024 and of_slot([64 * x, 128 * x]) == 128 * x
    assert of_slot([64 * x, 64 * y]) == "max(64 * x, 64 * y)"


def test_no_gradients_are_asked_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an input that a kernel turns once: what PyTorch raises there is not the same in each of its versions."""
    plain = torch.autograd.grad

    def grad(outputs: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(outputs, list | tuple) and isinstance(inputs, list | tuple) and not (outputs and inputs):
            raise ValueError("grad requires non-empty inputs.")
        return plain(outputs, inputs, *rest, **named)

    monkeypatch.setattr(torch.autograd, "grad", grad)
    monkeypatch.delenv("FUSEWRIGHT_ZOO", raising=False)
    problem = load_problem(Path(__file__).parents[2] / "benchmarks" / "unseen" / "generator_layer.py")
    front = read_problem(problem, Options(target="host", precision="flags"))
    assert front.finish(Choices(own=frozenset(), channels_last=True))[1].kernels
