"""Kernels that read one order in memory and write the other, planned for large sizes and run on the host at small ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from kernels.frame import a_part, cuda_of, models_of, problem_of
from kernels.nvcc import check_resources, cubin_of, needs_nvcc

from fusewright.codegen.loops.transpose import transposed_loads
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.frontend.problem import Problem
from fusewright.host import compile_host, run_sanitized, sanitizer_report
from fusewright.options import Options
from fusewright.target.helpers import host_text
from fusewright.verify.candidate import load_candidate

CHANNELS_LAST = Choices(own=frozenset(), channels_last=True)
IMAGE, VOLUME = (90, 80), (12, 40, 30)
POOLS = {
    "a pool": ("F.relu(F.max_pool2d(y, 2))", IMAGE),
    "a pool that overlaps": ("F.avg_pool2d(y, 3, stride=2, padding=1) * 2", IMAGE),
    "a pool of a volume": ("torch.tanh(F.avg_pool3d(y, 2))", VOLUME),
    "many taps": ("F.max_pool3d(y, 3, stride=1, padding=1) + 1", VOLUME),
    "statistics, then a pool": ("F.max_pool2d(F.log_softmax(y, 3), 2)", IMAGE),
    "two results": ("(F.max_pool2d(y, 2) * 3, F.max_pool2d(y, 2) + 1)", IMAGE),
    "neighbours": ("torch.roll(torch.sin(y), 1, 3)", IMAGE),
}
ROWS = {  # reductions along what is written, and what is made of them
    "along the width": ("torch.sigmoid(torch.logsumexp(self.norm(y).abs(), 3, True)) * y", IMAGE),
    "along the width of a volume": ("torch.softmax(torch.tanh(y), 4)", VOLUME),
    "along both sides": ("y - y.mean((2, 3), keepdim=True)", (16, 20)),
    "two passes": ("F.instance_norm(y).softmax(3) + 1", IMAGE),
    "two results of a row": ("(lambda m: (y - m, y * m, m))(y.amax(3, keepdim=True))", IMAGE),
}
PATCHES = {  # reductions along neither
    "over the height": ("F.log_softmax(y, 2) * 2", IMAGE),
    "over the depth": ("torch.softmax(self.norm(y), 2) * y", VOLUME),
    "over the height of a volume": ("(lambda m: (y - m, m))(y.amax(3, keepdim=True))", (12, 40, 60)),
}
CHANNELS = {  # reductions along what is read
    "over channels": ("torch.softmax(y * 2, 1)", IMAGE),
    "over channels of a volume": ("F.log_softmax(torch.relu(y), 1) * 3", VOLUME),
    "over channels, and one for each row": ("(lambda m: (y / m, m))(1 + y.square().sum(1, keepdim=True))", IMAGE),
    "two norms": ("F.normalize(y - y.mean(1, keepdim=True), dim=1)", IMAGE),
}
CASES = POOLS | ROWS | PATCHES | CHANNELS


def front_of(folder: Path, forward: str, planned: tuple[int, ...], channels: int, batch: int = 32) -> Front:
    """Of y, the result of a convolution."""
    rank = len(planned)
    init = f"self.conv, self.norm = nn.Conv{rank}d(4, {channels}, 1), nn.BatchNorm{rank}d({channels})"
    inputs = f"torch.randn({(batch, 4, *planned)})"
    return read(problem_of(folder, forward, inputs, init=init, lines=["y = self.conv(x)"]))


def copied(folder: Path, channels: int, batch: int, *spatial: int) -> Front:
    """Of two convolutions of one input."""
    conv = f"nn.Conv{len(spatial)}d({channels}, 8, 3)"
    forward, inputs = "torch.relu(self.first(x)) * self.second(x) + 1", f"torch.randn({(batch, channels, *spatial)})"
    return read(problem_of(folder, forward, inputs, init=f"self.first, self.second = {conv}, {conv}"))


def read(problem: Problem) -> Front:
    return read_problem(problem, Options(target="host"))


def check(front: Front, *shapes: tuple[int, ...]) -> str:
    """Results and the parameters' gradients, against the model in double precision; the emitted text."""
    _, emitted = front.finish(CHANNELS_LAST)
    original, new = models_of(front.problem, emitted.text)
    original.double()
    for shape in shapes:
        x = torch.randn(shape)
        for model in (original, new):
            model.zero_grad()
        expected, found = original(x.double()), new(x)
        for e, f in zip(as_tuple(expected), as_tuple(found), strict=True):
            assert f.is_contiguous()
            torch.testing.assert_close(f.double(), e, rtol=1e-4, atol=1e-5)
        upstream = [torch.randn(e.shape) for e in as_tuple(expected)]
        torch.autograd.backward(as_tuple(expected), [u.double() for u in upstream])
        torch.autograd.backward(as_tuple(found), upstream)
        for (name, e), f in zip(original.named_parameters(), new.parameters(), strict=True):
            if e.grad is not None:
                torch.testing.assert_close(f.grad.double(), e.grad, rtol=1e-3, atol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
    return emitted.text


def as_tuple(value: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def awkward(planned: tuple[int, ...]) -> list[tuple[int, ...]]:
    """No multiple of a tile, one tile and a little, as small as can be."""
    return [(3, 4, 7, 13), (2, 4, 33, 10), (2, 4, 4, 4)] if len(planned) == 2 else [(2, 4, 5, 6, 7), (3, 4, 4, 4, 9)]


@pytest.mark.parametrize("channels", [pytest.param(8, marks=pytest.mark.slow), 37])
@pytest.mark.parametrize("case", a_part(POOLS))
def test_results_of_pools_are_turned(case: str, channels: int, tmp_path: Path) -> None:
    forward, planned = POOLS[case]
    text = check(front_of(tmp_path, forward, planned, channels), *awkward(planned))
    assert "_tile[k][j]" in text


@pytest.mark.parametrize("channels", [pytest.param(8, marks=pytest.mark.slow), 37])
@pytest.mark.parametrize("case", a_part(ROWS))
def test_what_is_written_along_rows_is_turned(case: str, channels: int, tmp_path: Path) -> None:
    forward, planned = ROWS[case]
    text = check(front_of(tmp_path, forward, planned, channels), *awkward(planned))
    assert "_tile[threadIdx.x][place" in text


@pytest.mark.parametrize("channels", [pytest.param(8, marks=pytest.mark.slow), 37])
@pytest.mark.parametrize("case", PATCHES, ids=lambda name: name.replace(" ", "-"))
def test_what_is_written_along_other_rows_is_turned(case: str, channels: int, tmp_path: Path) -> None:
    forward, planned = PATCHES[case]
    text = check(front_of(tmp_path, forward, planned, channels), *awkward(planned))
    assert "_tile[u][k][j]" in text


@pytest.mark.parametrize("channels", [pytest.param(8, marks=pytest.mark.slow), 37, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", a_part(CHANNELS))
def test_rows_that_lie_together_are_staged(case: str, channels: int, tmp_path: Path) -> None:
    forward, planned = CHANNELS[case]
    text = check(front_of(tmp_path, forward, planned, channels), *awkward(planned))
    assert "_tile[threadIdx.x][i1]" in text or "_tile[threadIdx.x][item]" in text


@pytest.mark.parametrize("forward", [CASES[case][0] for case in ("a pool", "along the width", "over the height", "over channels")])
def test_batch_of_one(forward: str, tmp_path: Path) -> None:
    text = check(front_of(tmp_path, forward, IMAGE, 40, batch=1), (1, 4, 9, 10), (1, 4, 2, 2))
    assert "__shared__" in text


def test_half_precision(tmp_path: Path) -> None:
    """Tiles hold what memory holds."""
    front = front_of(tmp_path, "torch.softmax(y.bfloat16(), 1) + torch.softmax(y.bfloat16(), 3)", IMAGE, 24)
    _, emitted = front.finish(CHANNELS_LAST, gradients=False)
    assert "__shared__" in emitted.text
    original, new = models_of(front.problem, emitted.text)
    x = torch.randn(2, 4, 9, 37)
    with torch.no_grad():
        torch.testing.assert_close(new(x), original(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("channels", [8, 12, 37])
@pytest.mark.parametrize("planned", [(8, 40, 40), (6, 5, 20, 20), (1, 9, 11)], ids=str)
def test_an_input_is_turned_once_by_a_kernel(planned: tuple[int, ...], channels: int, tmp_path: Path) -> None:
    """Two convolutions read it; nothing is copied where it lies so already; its own gradient is that of a copy."""
    batch, *spatial = planned
    front = copied(tmp_path, channels, batch, *spatial)
    _, emitted = front.finish(CHANNELS_LAST)
    candidate = load_candidate(emitted.text, "host")
    original, new = front.problem.model(), candidate.build_model(front.problem)
    new.load_state_dict(original.state_dict())
    order = torch.channels_last if len(spatial) == 2 else torch.channels_last_3d
    x = torch.randn(batch, channels, *(5 + 2 * d for d in range(len(spatial))))
    inputs = [(x, 1), (x.contiguous(memory_format=order), 0), (x.transpose(-1, -2), 1)]
    for given, launched in inputs:  # before there is a backward: then PyTorch's operators copy what asks for a gradient
        with candidate.trace() as trace:
            new(given.detach().requires_grad_())
        assert sum("copy" in name for name in trace.kernels) == launched, trace.kernels
    for given, _ in inputs:
        given, twin = given.detach().requires_grad_(), given.detach().clone().double().requires_grad_()
        found, expected = new(given), original.double()(twin)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
        (wanted,), (got,) = (torch.autograd.grad(r.sum(), v) for r, v in ((expected, twin), (found, given)))
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


def test_an_input_that_pytorch_turns_faster_is_left_to_it(tmp_path: Path) -> None:
    """By timing; and one of few channels, which would leave tiles empty."""
    front = copied(tmp_path, 16, 2, 40, 40)
    _, emitted = front.finish(Choices(frozenset({"x_channels_last"}), frozenset(), channels_last=True))
    assert "copy_fwd" not in emitted.text and ".contiguous(memory_format=torch.channels_last)" in emitted.text
    _, emitted = copied(tmp_path, 3, 2, 40, 40).finish(CHANNELS_LAST)
    assert "copy_fwd" not in emitted.text and ".contiguous(memory_format=torch.channels_last)" in emitted.text


def test_what_belongs_to_a_row_lies_as_its_readers_read_it(tmp_path: Path) -> None:
    """The maximum and sum of a softmax over the width: threads side by side on channels write them and read them again."""
    _, emitted = front_of(tmp_path, "F.max_pool2d(F.log_softmax(y, 3), 2)", IMAGE, 64).finish(CHANNELS_LAST, gradients=False)
    found = re.findall(r"log_softmax_max_ptr\[(.*?)\]", emitted.text)
    assert found and all(offset.endswith(("+ i1", "+ b")) for offset in found), found  # b: the channel of a thread


def kernel_source(front: Front) -> str:
    return cuda_of(front.finish(CHANNELS_LAST, gradients=False)[1].text)


SANITIZED: dict[str, list[str | int]] = {  # floats of each tensor that the kernel takes, and sizes
    "an input": [*[str(2 * 9 * 7 * 12)] * 2, 2, 9, 7],
    "a pool": ["37", str(2 * 9 * 7 * 37), str(2 * 4 * 3 * 37), 2, 9, 7],
    "along the width of a volume": ["37", *[str(2 * 3 * 4 * 41 * 37)] * 2, 2, 3, 4, 41],
    "over the height": ["37", *[str(2 * 9 * 21 * 37)] * 2, 2, 9, 21],
    "over channels": ["37", *[str(2 * 9 * 7 * 37)] * 2, 2, 9, 7],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sanitize", ["address", "thread"])
@pytest.mark.parametrize("case", SANITIZED, ids=lambda name: name.replace(" ", "-"))
def test_sanitized(case: str, sanitize: str, tmp_path: Path) -> None:
    planned = copied(tmp_path, 12, 8, 40, 40) if case == "an input" else front_of(tmp_path, *CASES[case], 37)
    source = kernel_source(planned)
    launcher = re.findall(r'^extern "C" const char\* (\w+)', source, re.MULTILINE)[0]
    library = compile_host(source, include_text=host_text(), sanitize=sanitize)
    script = Path(__file__).parent.parent / "host" / "sanitized_calls.py"
    command = [str(script), str(library), json.dumps([[launcher, SANITIZED[case]]])]
    process = run_sanitized(command, sanitize, env={"PYTHONMALLOC": "malloc"})
    assert sanitizer_report(process.stderr) is None, process.stderr[-2000:]
    assert process.returncode == 0 and "nothing found" in process.stdout, process.stderr[-2000:]


@needs_nvcc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_compile(dtype: str, tmp_path: Path) -> None:
    """An input of halves that is transposed for a convolution: outside a tile there is a zero of its type."""
    init = f"self.conv = nn.Conv2d(16, 16, 3).to(torch.{dtype})"
    image = f"torch.randn(8, 16, 40, 40, dtype=torch.{dtype})"
    problem = problem_of(tmp_path, "torch.relu(y)", image, init=init, lines=["y = self.conv(x)"])
    made, emitted = read(problem).finish(CHANNELS_LAST, gradients=False)
    assert any(transposed_loads(kernel, made.lowered.prims, made.graph) for kernel in made.kernels)
    cubin_of(cuda_of(emitted.text), tmp_path)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_nothing_is_spilled(case: str, tmp_path: Path) -> None:
    found, _, _ = cubin_of(kernel_source(front_of(tmp_path, *CASES[case], 64)), tmp_path)
    check_resources(found, registers=128)
