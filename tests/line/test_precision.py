"""Convolutions as exact as PyTorch's library in fact is, where its flags allow TF32: what is decided, and what that makes of a file."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fusewright.driver import pipeline
from fusewright.driver.all_variants import variants
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import LIBRARY_CHANNELS_LAST, Choices, convolutions
from fusewright.driver.tuning.tune import Tuned, key
from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule import fusion
from fusewright.schedule.layout import coarse_calls
from fusewright.schedule.library import FEW_CHANNELS, Convolution, Library
from fusewright.schedule.training import Training
from fusewright.target.helpers import helpers
from fusewright.verify import library_arithmetic
from fusewright.verify.candidate import load_candidate
from fusewright.verify.library_arithmetic import convolutions_of, library_of
from fusewright.verify.precision import FLAGS, Precision, decided, split_all
from fusewright.verify.verifier import verify

CPU = torch.device("cpu")
FOUNDING = Path(__file__).parents[2] / "examples" / "conv2d_groupnorm_logsumexp.py"


class Chain(nn.Module):
    def __init__(self, inputs: int, kind: str = "relu"):
        super().__init__()
        self.conv, self.kind = nn.Conv2d(inputs, 16, 3), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return torch.relu(y) if self.kind == "relu" else torch.logsumexp(y, 1).mean((1, 2))


def of(model: nn.Module, x: torch.Tensor, precision: str = "eager") -> Precision:
    return decided(model, [x], capture(model, [x]), CPU, precision)


def test_few_channels_are_split() -> None:
    found = of(Chain(3), torch.rand(4, 3, 20, 20))
    assert found.split and "TF32" in found.why and found.library == Library()
    assert of(Chain(3), torch.rand(4, 3, 20, 20), "flags") == FLAGS


def test_many_channels_are_not() -> None:
    found = of(Chain(FEW_CHANNELS + 1), torch.rand(4, FEW_CHANNELS + 1, 20, 20))
    assert not found.split and found.library is not None


def test_what_averages_out_is_one_product() -> None:
    found = of(Chain(8, "mean"), torch.rand(4, 8, 20, 20))
    assert not found.split and "one TF32 product errs" in found.why


def test_running_statistics_count_too() -> None:
    """A sum of log softmaxes that says nothing of its convolution, beside a mean that does."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 16, 3, bias=False), nn.BatchNorm2d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.logsumexp(torch.log_softmax(self.norm(self.conv(x)), 1), 1)

    torch.manual_seed(0)
    assert of(Normed(), torch.rand(4, 4, 20, 20)).split
    assert not of(Normed().eval(), torch.rand(4, 4, 20, 20)).split


def test_the_founding_model_is_one_product() -> None:
    """Few channels, but a logsumexp over 64 of them: 3e-5 of the rms."""
    front = read_problem(load_problem(FOUNDING), Options(target="host"))
    made, emitted = front.finish(Choices())
    anchors = [kernel.fused.anchor for kernel in made.kernels if kernel.fused is not None]
    assert anchors and all(anchor.coarser and anchor.conv.tf32 for anchor in anchors)
    assert "within 1e-4 of their rms" in emitted.text


def test_without_the_flag_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert of(Chain(3), torch.rand(4, 3, 20, 20)) == FLAGS


def test_other_types_are_as_they_were() -> None:
    assert of(Chain(3).double(), torch.rand(4, 3, 20, 20, dtype=torch.float64)) == FLAGS


def test_twice_the_library_is_enough() -> None:
    """Behind many convolutions that the library rounds itself, one more rounded one does not show."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 32, 3, padding=1)
            self.rest = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rest(self.first(x))

    torch.manual_seed(0)
    found = of(Deep(), torch.rand(2, 3, 8, 8))
    assert not found.split, found.why


def test_the_convolutions_of_a_model() -> None:
    model = nn.Sequential(nn.Conv1d(6, 8, 3, padding="same", groups=2), nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1))
    found = convolutions_of(model, [torch.rand(2, 6, 10)])
    plain = Convolution(3, 8, (3,), (1,), (1,), (1,), 2)
    assert found == {plain: (2, 6, 10), Convolution(8, 4, (4,), (2,), (1,), (1,), transposed=True): (2, 8, 10)}


def test_answers_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A GPU is asked once about each convolution and size; where it cannot answer, the rule does."""
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    asked: list[Convolution] = []
    wide, narrow = Convolution(64, 64, (3,), (1,), (0,), (1,)), Convolution(3, 64, (3,), (1,), (0,), (1,))

    def answer(convolution: Convolution, sizes: tuple[int, ...], device: torch.device, channels_last: bool) -> bool | None:
        asked.append(convolution)
        return None if convolution == narrow else False

    monkeypatch.setattr(library_arithmetic, "asked", answer)
    gpu, both = torch.device("cuda", 0), {wide: (2, 64, 9), narrow: (2, 3, 9)}
    first = library_of(both, gpu)
    assert first == Library(((wide, False),)) and not first.rounds(wide) and not first.rounds(narrow)
    assert library_of(both, gpu) == first and asked == [wide, narrow, narrow]
    assert library_of({wide: (2, 64, 10)}, gpu).asked and asked[-1] == wide  # other sizes, another question
    assert library_of(both, CPU) == Library()


def test_a_rounded_convolution_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap is wide: a CPU computes in float32, and TF32 is emulated."""
    from fusewright.verify.reference import to_tf32

    each = [
        (Convolution(3, 64, (7, 7), (2, 2), (3, 3), (1, 1)), (2, 3, 32, 32)),
        (Convolution(512, 16, (3, 3), (1, 1), (0, 0), (1, 1)), (2, 512, 8, 8)),
        (Convolution(4, 8, (4,), (2,), (1,), (1,), 2, True), (2, 8, 9)),
    ]
    assert [library_arithmetic.asked(convolution, sizes, CPU) for convolution, sizes in each] == [False, False, False]
    plain = library_arithmetic._run
    rounds = lambda c, x, w: plain(c, *((to_tf32(x), to_tf32(w)) if x.dtype is torch.float32 else (x, w)))  # noqa: E731
    monkeypatch.setattr(library_arithmetic, "_run", rounds)
    assert [library_arithmetic.asked(convolution, sizes, CPU) for convolution, sizes in each] == [True, True, True]


# ---- on channels-last data

SHORTCUT = Convolution(24, 32, (1, 1), (2, 2), (0, 0), (1, 1))  # of the model below
RESIDUAL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(24, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32)
        self.shortcut = nn.Sequential(nn.Conv2d(24, 32, 1, 2, bias=False), nn.BatchNorm2d(32))

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)) + self.shortcut(x))


def get_inputs():
    return [torch.randn(2, 24, 12, 12)]


def get_init_inputs():
    return []
"""


def test_a_library_that_rounds_channels_last_data_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library has other kernels for it. Each layout is asked, once."""
    from fusewright.verify.reference import to_tf32

    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    plain, asked, layouts = library_arithmetic._run, library_arithmetic.asked, list[bool]()

    def rounds(convolution: Convolution, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        channels_last = x.is_contiguous(memory_format=torch.channels_last) and x.dtype is torch.float32
        return plain(convolution, *((to_tf32(x), to_tf32(weight)) if channels_last else (x, weight)))

    def on_the_cpu(convolution: Convolution, sizes: tuple[int, ...], device: torch.device, channels_last: bool) -> bool | None:
        layouts.append(channels_last)
        return asked(convolution, sizes, CPU, channels_last)

    monkeypatch.setattr(library_arithmetic, "_run", rounds)
    monkeypatch.setattr(library_arithmetic, "asked", on_the_cpu)
    monkeypatch.setattr(library_arithmetic, "gradients_asked", lambda *_: False)
    for _ in range(2):
        library = library_of({SHORTCUT: (2, 24, 12, 12)}, torch.device("cuda", 0))
        assert not library.rounds(SHORTCUT) and library.rounds(SHORTCUT, channels_last=True)
    assert layouts == [False, True]


@pytest.mark.parametrize("coarser", [False, True])
def test_a_variant_that_rounds_more_than_eager_is_no_candidate(coarser: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A running mean shows its convolution's arithmetic: the library's channels-last one is not offered where it alone rounds."""
    library = Library(((SHORTCUT, False),), frozenset({SHORTCUT} if coarser else ()))
    monkeypatch.setattr("fusewright.verify.precision.library_of", lambda convolutions, device: library)
    front = front_of(tmp_path, RESIDUAL, 24)
    every, notes = variants(front)
    assert (LIBRARY_CHANNELS_LAST in {variant.name for variant in every}) is not coarser
    assert any(LIBRARY_CHANNELS_LAST in note and "TF32" in note for note in notes) is coarser
    assert bool(coarse_calls(front.finish(Choices(own=frozenset(), channels_last=True))[0])) is coarser
    assert not coarse_calls(front.finish(Choices(own=frozenset()))[0])


def test_what_does_not_show_stays_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind convolutions that the library rounds in any layout."""
    first = Convolution(3, 32, (3, 3), (1, 1), (1, 1), (1, 1))
    monkeypatch.setattr("fusewright.verify.precision.library_of", lambda *_: Library(((first, False),), frozenset({first})))
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(nn.Conv2d(32, 32, 3, padding=1) for _ in range(8)))
    assert not of(deep, torch.rand(2, 3, 8, 8)).plain_only


LONE = Convolution(3, 8, (5, 5), (1, 1), (2, 2), (1, 1))  # of the model below
CENTRED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 5, padding=2, bias=bias)
        self.deep = nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, bias=bias)

    def forward(self, x):
        return torch.tanh(self.deep(torch.sigmoid(self.conv(x)))) * 2


def get_inputs():
    return [torch.randn(2, 3, 12, 10)]


def get_init_inputs():
    return [True]
"""


class Backwards(TorchDispatchMode):
    """How the tensors lie that the library differentiates convolutions with."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            self.plain.append(args[0].is_contiguous() and args[1].is_contiguous())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("coarse", [False, True])
def test_gradients_that_only_channels_last_data_makes_coarser(coarse: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Such a convolution stays on channels-last data, and is differentiated on plain data: once, and twice."""
    deep = Convolution(8, 6, (3, 3), (2, 2), (1, 1), (1, 1), transposed=True)
    library = Library(((LONE, False), (deep, False)), coarser_gradients=frozenset({LONE, deep} if coarse else ()))
    monkeypatch.setattr("fusewright.verify.precision.library_of", lambda convolutions, device: library)
    front = front_of(tmp_path, CENTRED, 3)
    emitted = front.finish(Choices(own=frozenset(), channels_last=True))[1]
    assert ("_differentiated_plainly(" in emitted.text) is coarse and "channels_last" in emitted.text
    assert "_differentiated_plainly(" not in front.finish(Choices(own=frozenset()))[1].text
    candidate = load_candidate(emitted.text, "host")
    model, new = front.problem.model(), candidate.build_model(front.problem)
    new.load_state_dict(model.state_dict())
    x = torch.randn(3, 3, 14, 11)
    found, seen = [], Backwards()
    for each in (model, new):
        y = x.clone().requires_grad_()
        with seen if each is new else contextlib.nullcontext():
            first = torch.autograd.grad(each(y).square().sum(), [y, *each.parameters()], create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), [y, *each.parameters()])
            each(y).sum().backward()
        found.append([*first, *second, y.grad, *(p.grad for p in each.parameters())])
    assert len(seen.plain) >= 4 and all(seen.plain) is coarse
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4 * float(theirs.detach().abs().max()))


def test_gradients_are_asked_in_both_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coarser are those that channels-last data alone makes so, at the given batch or at a small one."""
    from fusewright.verify.reference import to_tf32

    exact, each = library_arithmetic._gradients, Convolution(4, 8, (3, 3), (1, 1), (1, 1), (1, 1))
    for turned_alone, from_batch, expected in ((True, 0, True), (False, 0, False), (True, 6, True), (True, 9, False)):

        def rounds(
            convolution: Convolution, x: torch.Tensor, *others: torch.Tensor, alone: bool = turned_alone, least: int = from_batch
        ) -> tuple[torch.Tensor, torch.Tensor]:
            here = x.dtype is torch.float32 and len(x) >= least and (not alone or not x.is_contiguous())
            return exact(convolution, *(to_tf32(t) if here else t for t in (x, *others)))

        monkeypatch.setattr(library_arithmetic, "_gradients", rounds)
        assert library_arithmetic.gradients_asked(each, (6, 4, 12, 12), CPU) is expected


# ---- in files

BY_HAND = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, 16, 3)
        self.scale, self.shift = nn.Parameter(torch.ones(16, 1, 1)), nn.Parameter(torch.zeros(16, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        y = (y - y.mean((0, 2, 3), keepdim=True)) / torch.sqrt(y.var((0, 2, 3), keepdim=True, unbiased=False) + 1e-5)
        return torch.relu(y * self.scale + self.shift)


def get_inputs():
    return [torch.rand(4, {inputs}, 24, 24)]


def get_init_inputs():
    return [{inputs}]
"""
PARAMETERS = "self.scale, self.shift = nn.Parameter(torch.ones(16, 1, 1)), nn.Parameter(torch.zeros(16, 1, 1))"
BEFORE, BEHIND = BY_HAND.index("        y = (y -"), BY_HAND.index("\n\ndef get_inputs")


def epilogue(text: str, parameters: str = "pass") -> str:
    """The same convolution, with something else behind it."""
    return (BY_HAND[:BEFORE] + f"        return {text}\n" + BY_HAND[BEHIND:]).replace(PARAMETERS, parameters)


BATCH_NORM = epilogue("torch.relu(self.norm(y))", "self.norm = nn.BatchNorm2d(16)")


def front_of(folder: Path, text: str, inputs: int, **options: str) -> Front:
    path = folder / "model.py"
    path.write_text(text.replace("{inputs}", str(inputs)))
    return read_problem(load_problem(path), Options(target="host", **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["eager", "flags"])
def test_what_a_file_says_and_asks(precision: str, tmp_path: Path) -> None:
    """A split convolution is right whatever the flag says, and does not ask it; above each kernel stands how it multiplies."""
    front = front_of(tmp_path, BATCH_NORM, 3, precision=precision)
    made, emitted = front.finish(Choices(own=convolutions(front.graph)))
    again = front.finish(Choices(own=convolutions(front.graph)))[1]
    strict = [kernel.fused.anchor.conv.is_strict for kernel in made.kernels if kernel.fused is not None]
    assert strict and set(strict) == {precision == "eager"} and again.text == emitted.text
    assert ("_tf32_allowed" in emitted.text) is (precision == "flags")
    words = {"eager": "three products of TF32 parts", "flags": "one TF32 product, as the flags allow"}
    assert f"//   {words[precision]}" in emitted.text
    made, _ = replace(front, precision=split_all(Precision(Library()))).finish(Choices(own=convolutions(front.graph)))
    assert all(kernel.fused.anchor.conv.is_strict for kernel in made.kernels if kernel.fused is not None)


def test_choices_are_kept_apart(tmp_path: Path) -> None:
    """What was timed of files that round is not taken for files that split, also where the predicted file has no such kernel."""
    library = Choices(own=frozenset(), training=Training(own_weights=frozenset()))
    found = [front_of(tmp_path, BATCH_NORM, 3, precision=precision) for precision in ("eager", "flags")]
    (_, exact), (_, coarse) = (front.finish(library) for front in found)
    assert exact.text == coarse.text
    assert key(exact, "a GPU", found[0].precision.name) != key(coarse, "a GPU", found[1].precision.name)


def gradients(model: nn.Module, x: torch.Tensor, cotangent: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of a second step: from the first backward on, forward keeps what it had."""
    for _ in range(2):
        found = torch.autograd.grad((model(x) * cotangent).sum(), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


@pytest.mark.parametrize("cotangent", ["ones", "normal"])
@pytest.mark.parametrize(("name", "inputs"), [("by hand", 8), ("by hand", 20), ("batch norm", 8), ("batch norm", 20)])
def test_backward_goes_by_one_convolution(name: str, inputs: int, cotangent: str, tmp_path: Path) -> None:
    """Rows of 22 are computed again in backward, by the library: then statistics are those of what is computed again, and a
    gradient that is zero is no more than noise. By forward's statistics, of TF32 products, these erred a thousand times as much."""
    front = front_of(tmp_path, BY_HAND if name == "by hand" else BATCH_NORM, inputs, precision="flags")
    library = Training(own_weights=frozenset())  # by the flags alone, a kernel's gradient of the weight would round as forward does
    made, emitted = front.finish(Choices(own=convolutions(front.graph), stored=False, training=library))
    assert sum(kernel.fused is not None and kernel.fused.anchor.conv.tf32 for kernel in made.kernels) == 2
    original = front.problem.model(0)
    new = load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
    new.load_state_dict(original.state_dict())
    torch.manual_seed(0)
    (x,) = front.problem.inputs(0)
    upstream = torch.ones(4, 16, 22, 22) if cotangent == "ones" else torch.randn(4, 16, 22, 22)
    assert float(exact_gradients(original, x, upstream)["conv.bias"].abs().max()) < 1e-9
    as_exact_as_eager(original, new, x, upstream)


def exact_gradients(original: nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> dict[str, torch.Tensor]:
    return gradients(copy.deepcopy(original).double(), x.double(), upstream.double())


def as_exact_as_eager(original: nn.Module, new: nn.Module, x: torch.Tensor, upstream: torch.Tensor) -> None:
    exact, eager, ours = exact_gradients(original, x, upstream), gradients(original, x, upstream), gradients(new, x, upstream)
    for parameter, value in exact.items():
        noise, own = (float((found[parameter] - value).abs().max()) for found in (eager, ours))
        assert own <= 2 * noise + 1e-6 * float(value.abs().max()), parameter


def test_a_rounded_convolution_does_not_reach_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one TF32 product is near enough for results, gradients are those of the library's float32 convolution."""
    text = epilogue("torch.logsumexp(y, 1).mean((1, 2))").replace("24, 24", "26, 26")  # rows of whole sectors, which would be kept
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    front = front_of(tmp_path, text, 8)
    made, emitted = front.finish(Choices())
    assert not front.precision.split and any(kernel.fused.anchor.coarser for kernel in made.kernels if kernel.fused is not None)
    original = front.problem.model(0)
    new = load_candidate(emitted.text, "host", name="new.py").build_model(front.problem)
    new.load_state_dict(original.state_dict())
    (x,) = front.problem.inputs(0)
    upstream = torch.randn(4, generator=torch.Generator().manual_seed(0))
    as_exact_as_eager(original, new, x, upstream)


@pytest.mark.gpu
def test_a_gpu_answers() -> None:
    """Whatever it answers is the truth: its error is float32's or TF32's, and nothing in between."""
    gpu = torch.device("cuda", torch.cuda.current_device())
    for inputs in (3, 8, 16, 64):
        convolution = Convolution(inputs, 64, (3, 3), (1, 1), (1, 1), (1, 1))
        answer = library_arithmetic.asked(convolution, (8, inputs, 64, 64), gpu)
        assert answer is not None
        assert answer or inputs <= FEW_CHANNELS


def test_bf16_parts_do_where_they_are_near_enough() -> None:
    assert of(Chain(3), torch.rand(4, 3, 20, 20)).bf16_parts_do
    assert not of(Chain(3), torch.rand(4, 3, 20, 20)).bf16_parts  # that is for timing to choose
    assert not of(Chain(8, "mean"), torch.rand(4, 8, 20, 20)).bf16_parts_do  # one TF32 product does


def test_bf16_parts_do_not_behind_a_norm_of_shifted_values() -> None:
    """A mean a thousand times the deviation is subtracted: what parts lack of it is left over."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.InstanceNorm2d(16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.conv(x + 1000.0)))

    found = of(Normed(), torch.randn(4, 3, 20, 20))
    assert found.split and not found.bf16_parts_do


def test_bf16_parts_are_a_variant_that_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen by timing alone, asks the flag, says above its kernel how it multiplies, and is kept in a record."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    front = front_of(tmp_path, epilogue("torch.tanh(y)"), 3)
    every, _ = variants(front)
    (parts,) = [named.choices for named in every if named.name == "our convolutions by bf16 parts"]
    assert parts == Choices(own=convolutions(front.graph), bf16_parts=True) == Choices.from_dict(parts.to_dict())
    made, emitted = front.finish(parts)
    assert [kernel.fused.anchor.conv.bf16_parts for kernel in made.kernels if kernel.fused is not None] == [True]
    assert "_tf32_allowed" in emitted.text and "//   three products of bf16 parts" in emitted.text and "mma_bf16" in emitted.text
    assert "mma_bf16" not in front.finish(Choices(own=parts.own))[1].text
    verdict = verify(front.problem, load_candidate(emitted.text, "host", name="new.py"), graph=front.graph, options=Options(target="host"))
    assert verdict.passed, "\n".join(map(str, verdict.checks))


def test_bf16_parts_that_do_not_verify_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file with TF32 parts is written, with a note; it is not degraded."""
    monkeypatch.setattr(fusion, "pays", lambda *_: True)
    front = front_of(tmp_path, epilogue("torch.tanh(y)"), 3)
    chosen = Choices(own=convolutions(front.graph), bf16_parts=True)
    monkeypatch.setattr(pipeline, "tuned_elsewhere", lambda *_: Tuned(chosen))
    true_parts = helpers()["bf16_parts"]
    broken = replace(true_parts, bodies=None, text=true_parts.text.replace("low = both(", "low = 0 & both("))
    assert broken.text != true_parts.text
    monkeypatch.setitem(helpers(), "bf16_parts", broken)
    run = pipeline.optimize(front.problem, Options(target="host"))
    assert run.verdict.passed and run.choices == replace(chosen, bf16_parts=False)
    assert "mma_bf16" not in run.text and run.report["degraded"] == []
    assert any("bf16 parts did not verify" in note for note in run.report["notes"])
