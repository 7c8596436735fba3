"""Elements picked by number: kernels read where another tensor says, never outside, and gradients go back through PyTorch's operators."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from kernels.frame import cuda_of, made_of, models_of, problem_of
from torch import Tensor

from fusewright.driver.pipeline import compile_problem, read_problem
from fusewright.driver.tuning.choices import Choices
from fusewright.errors import Unsupported
from fusewright.host import compile_host, run_sanitized, sanitizer_report
from fusewright.options import Options
from fusewright.schedule.product_fusion import products
from fusewright.target.helpers import host_text

ROWS = "self.table = nn.Embedding(13, 8)"
WEIGHT = "self.weight = nn.Parameter(torch.rand(5, 6) + 0.5)"


def numbers(below: int, *shape: int, dtype: str = "torch.int64", low: int = 0) -> str:
    return f"torch.randint({low}, {below}, {shape}, dtype={dtype})"


# forward, inputs, a statement of the constructor
CASES = [
    ("self.table(x)", [numbers(13, 3, 5)], ROWS),
    ("self.table(x) * 2 + 1", [numbers(13, 3, 5, dtype="torch.int32")], ROWS),
    ("self.table(x).relu()", [numbers(13, 7)], "self.table = nn.Embedding(13, 9, padding_idx=2)"),
    ("self.table((x * 2 + 1).clamp(max=12))", [numbers(13, 4, 3)], ROWS),
    ("F.layer_norm(self.table(x) + self.places(torch.arange(x.shape[1])), (24,))", [numbers(13, 3, 5)],
     "self.table, self.places = nn.Embedding(13, 24), nn.Embedding(9, 24)"),
    ("self.table(x).sum(1)", [numbers(13, 3, 5)], ROWS),
    ("self.table(x).mean(1) + self.table(x).amax(1)", [numbers(13, 3, 5)], ROWS),
    ("torch.cat((self.first.expand(x.shape[0], 1, 8), self.table(x)), 1) * 2", [numbers(13, 3, 5)],
     "self.table, self.first = nn.Embedding(13, 8), nn.Parameter(torch.randn(8))"),
    ("F.pad(self.table(x), (0, 0, 2, 1)) + 1", [numbers(13, 3, 5)], ROWS),
    ("F.avg_pool1d(self.table(x).transpose(1, 2), 3, 1, 1)", [numbers(13, 3, 6)], ROWS),
    ("self.table(y[x])", [numbers(4, 3, 5), numbers(13, 4)], ROWS),
    ("torch.gather(x * self.weight, 1, y)", ["torch.randn(3, 5, 6)", numbers(5, 3, 2, 6)], WEIGHT),
    ("torch.gather(x * self.weight, 2, y) + 1", ["torch.randn(3, 5, 6)", numbers(6, 2, 4, 7)], WEIGHT),
    ("torch.gather(x * self.weight, 0, y)", ["torch.randn(3, 5, 6)", numbers(3, 4, 5, 6)], WEIGHT),
    ("torch.gather(torch.softmax(x * self.weight, -1), -1, y)", ["torch.randn(3, 5, 6)", numbers(6, 3, 5, 2)], WEIGHT),
    ("-torch.log_softmax(x * self.weight, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1).mean()",
     ["torch.randn(3, 5, 6)", numbers(6, 3, 5)], WEIGHT),
    ("torch.softmax(torch.gather(x * self.weight, 2, y), -1)", ["torch.randn(3, 5, 6)", numbers(6, 3, 5, 7)], WEIGHT),
    ("torch.index_select(x * self.weight, 1, y).tanh()", ["torch.randn(3, 5, 6)", numbers(5, 4)], WEIGHT),
    ("torch.index_select(x * self.weight, -1, y)", ["torch.randn(3, 5, 6)", numbers(6, 4, dtype="torch.int32")], WEIGHT),
    ("torch.index_select(x * self.weight, 0, y).sum((0, 2))", ["torch.randn(3, 5, 6)", numbers(3, 8)], WEIGHT),
    ("torch.take_along_dim(x * self.weight, y, 1)", ["torch.randn(3, 5, 6)", numbers(5, 3, 2, 1, low=-5)], WEIGHT),
    ("torch.take_along_dim(x * self.weight, x.argsort(-1), -1)", ["torch.randn(3, 5, 6)"], WEIGHT),
    ("torch.take(x * self.weight, y)", ["torch.randn(3, 5, 6)", numbers(90, 4, 2, low=-90)], WEIGHT),
    ("(x * self.weight)[y]", ["torch.randn(3, 5, 6)", numbers(3, 4, 2, low=-3)], WEIGHT),
    ("(x * self.weight)[:, y] + 1", ["torch.randn(3, 5, 6)", numbers(5, 4, 2, low=-5)], WEIGHT),
    ("(x * self.weight)[:, :, y] + 1", ["torch.randn(3, 5, 6)", numbers(6, 7, low=-6, dtype="torch.int32")], WEIGHT),
    ("(x * self.weight)[:, [3, 0, -1]] + 1", ["torch.randn(3, 5, 6)"], WEIGHT),
    ("(x * self.weight)[y, z]", ["torch.randn(3, 5, 6)", numbers(3, 4, 1, low=-3), numbers(5, 2, low=-5)], WEIGHT),
    ("(x * self.weight)[:, y, z]", ["torch.randn(3, 5, 6)", numbers(5, 4, 2), numbers(6, 4, 2, low=-6)], WEIGHT),
    ("(x * self.weight)[y, :, z]", ["torch.randn(3, 5, 6)", numbers(3, 4, 1, low=-3), numbers(6, 2)], WEIGHT),
    ("(x * self.weight)[torch.arange(x.shape[0]), y[:x.shape[0]]]", ["torch.randn(3, 5, 6)", numbers(5, 9, low=-5)], WEIGHT),
    ("(x * self.weight)[torch.arange(x.shape[0]), x.sum(-1).argmax(1)]", ["torch.randn(3, 5, 6)"], WEIGHT),
    ("(x * self.weight).reshape(x.shape[0], 30)[:, y].cumsum(-1)", ["torch.randn(3, 5, 6)", numbers(30, 11)], WEIGHT),
    ("torch.softmax(x + self.bias[self.which].permute(2, 0, 1), -1)", ["torch.randn(3, 2, 5, 5)"],
     "self.bias = nn.Parameter(torch.randn(9, 2)); self.register_buffer('which', torch.arange(25).reshape(5, 5) % 9)"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("forward", "inputs", "init"), CASES, ids=[case[0] for case in CASES])
def test_is_picked(tmp_path: Path, forward: str, inputs: list[str], init: str) -> None:
    problem = problem_of(tmp_path, forward, *inputs, init=init)
    plan, _, original, new = made_of(problem, gradients=True)
    left = {str(call.node.target).split(".")[1] for call in plan.calls} - {"argsort", "sort", "getitem"}
    assert not left and plan.kernels
    original.double()
    for turn in range(2):
        given = problem.inputs(seed=turn)
        original.zero_grad()
        new.zero_grad()
        expected, found = original(*map(wide, given)), new(*given)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        upstream = torch.randn(expected.shape)
        expected.backward(upstream.double())
        found.backward(upstream)
        for ours, theirs in zip(new.parameters(), original.parameters(), strict=True):
            torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


def wide(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def test_outside_is_never_read(tmp_path: Path) -> None:
    """What PyTorch refuses is NaN, and no other element is."""
    _, _, _, new = made_of(problem_of(tmp_path, "self.table(x) + 1", numbers(13, 3, 5), init=ROWS))
    given = torch.tensor([[0, 12, 13, -1, 2**40], [1, 2, 3, 4, -(2**62)]])
    with torch.no_grad():
        assert torch.equal(new(given).isnan().all(-1), (given < 0) | (given > 12))
        assert torch.equal(new(given).isnan().any(-1), (given < 0) | (given > 12))


def test_of_whole_numbers_outside_is_nothing(tmp_path: Path) -> None:
    _, _, _, new = made_of(problem_of(tmp_path, "x[y] + 1", numbers(9, 4), numbers(4, 6, low=-4)))
    with torch.no_grad():
        assert new(torch.tensor([5, 6, 7, 8]), torch.tensor([0, -1, -4, 3, 4, -5])).tolist() == [6, 9, 6, 9, 1, 1]


def test_what_gather_does_not_number_lies_inside(tmp_path: Path) -> None:
    """More rows of numbers than of what is read: PyTorch says that it will not, and so does the file."""
    _, _, original, new = made_of(problem_of(tmp_path, "torch.gather(x, 1, y) * 2", "torch.randn(4, 6)", numbers(6, 3, 2)))
    x, y = torch.randn(4, 6), torch.zeros(5, 2, dtype=torch.int64)
    with torch.no_grad():
        torch.testing.assert_close(new(x, y[:2]), original(x, y[:2]))
        with pytest.raises(RuntimeError, match="index"):
            new(x, y)


def test_nothing_is_read_of_an_empty_tensor(tmp_path: Path) -> None:
    _, _, _, new = made_of(problem_of(tmp_path, "x[y] * 2", "torch.randn(4, 6)", numbers(4, 3)))
    with torch.no_grad(), pytest.raises((RuntimeError, IndexError)):
        new(torch.randn(0, 6), torch.zeros(3, dtype=torch.int64))


def test_masks_are_refused(tmp_path: Path) -> None:
    """How many elements a mask leaves is not known before it runs."""
    with pytest.raises(Unsupported):
        made_of(problem_of(tmp_path, "x[x > 0] * 2", "torch.randn(4, 6)"))


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float16"])
def test_halves(tmp_path: Path, dtype: str) -> None:
    forward = "F.layer_norm(self.table(x) + self.places(torch.arange(x.shape[1])), (24,))"
    init = f"self.table, self.places = nn.Embedding(13, 24, dtype={dtype}), nn.Embedding(9, 24, dtype={dtype})"
    problem = problem_of(tmp_path, forward, numbers(13, 3, 5), init=init)
    _, _, original, new = made_of(problem, gradients=True)
    original.double()
    for seed in range(2):
        (x,) = problem.inputs(seed=seed)
        step = torch.finfo(getattr(torch, dtype.removeprefix("torch."))).eps
        expected, found = original(x), new(x)
        torch.testing.assert_close(found.double(), expected, rtol=step, atol=2 * step)
        upstream = torch.randn(expected.shape).to(found.dtype)
        expected.backward(upstream.double())
        found.backward(upstream)
    for ours, theirs in zip(new.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=16 * step, atol=16 * step)


def test_rows_are_read_in_vectors_and_once(tmp_path: Path) -> None:
    """The row of a table is another one for each row of the kernel: where it begins is known before the loop along it."""
    forward = "F.layer_norm(self.table(x) + self.places(torch.arange(x.shape[1])), (256,))"
    init = "self.table, self.places = nn.Embedding(1000, 256), nn.Embedding(64, 256)"
    plan, text, _, _ = made_of(problem_of(tmp_path, forward, numbers(1000, 8, 64), init=init))
    (kernel,) = plan.kernels
    source = cuda_of(text).partition(f"{kernel.name}_kernel(")[2].partition('extern "C"')[0]
    assert source.count("load(&table_weight_ptr[(Index)") == 1 and source.count("table_weight_ptr[") == 1
    assert f"launch({kernel.name}_kernel<int, 4>" in text


def test_a_row_that_another_table_numbers_is_read_where_its_number_is(tmp_path: Path) -> None:
    """Of columns that are gone over twice, loads go ahead of the rest; not those from where the same pass says first."""
    forward = "(lambda e: e / e.exp().sum(1, keepdim=True))(self.table(x + self.first))"
    init = "self.table = nn.Embedding(13, 8); self.register_buffer('first', torch.arange(5))"
    problem = problem_of(tmp_path, forward, numbers(8, 3, 5), init=init)
    _, _, original, new = made_of(problem)
    (given,) = problem.inputs(seed=1)
    with torch.no_grad():
        torch.testing.assert_close(new(given), original(given))


@pytest.mark.parametrize(("picked", "kernels"), [(3, 1), (400, 2)])
def test_what_is_dear_and_picked_often_is_computed_once(tmp_path: Path, picked: int, kernels: int) -> None:
    problem = problem_of(tmp_path, "torch.sin(x)[:, y] * 2", "torch.randn(3, 20)", numbers(20, picked))
    assert len(compile_problem(problem, Options(gradients=False))[1].kernels) == kernels


def test_many_single_elements_are_picked_once(tmp_path: Path) -> None:
    """Two kernels want them: the first writes them down, since each costs as much as several that lie together."""
    lines = ["g = torch.gather(x, 1, y)"]
    problem = problem_of(tmp_path, "(g.sum(1), g.sum(0))", "torch.randn(1024, 1024)", numbers(1024, 1024, 1024), lines=lines)
    plan = compile_problem(problem, Options(gradients=False))[1]
    reading = [kernel for kernel in plan.kernels if "x" in kernel.loads]
    assert len(reading) == 1 and len(plan.kernels) == 2


EPILOGUES = [
    ("F.relu(self.conv(x) + self.bias(y)[:, :, None, None])", "nn.Conv2d(8, 16, 3)", "(2, 8, 10, 10)", 2),
    ("torch.logsumexp(self.conv(x) + self.bias(y)[:, :, None, None], 1)", "nn.Conv2d(8, 16, 3)", "(2, 8, 10, 10)", 2),
    ("F.gelu(self.conv(x) + self.bias(y))", "nn.Linear(32, 16)", "(40, 32)", 40),
]


@pytest.mark.parametrize(("forward", "layer", "shape", "count"), EPILOGUES, ids=[epilogue[0] for epilogue in EPILOGUES])
def test_ends_a_product(tmp_path: Path, forward: str, layer: str, shape: str, count: int) -> None:
    """The chain behind a convolution or a matrix product of our own picks from a table."""
    init = f"self.conv, self.bias = {layer}, nn.Embedding(7, 16)"
    problem = problem_of(tmp_path, forward, f"torch.randn{shape}", numbers(7, count), init=init)
    front = read_problem(problem, Options())
    own = frozenset(node.name for node in front.graph.nodes if "conv" in str(node.target)) | products(front.graph)
    plan, emitted = front.finish(Choices(own=own))
    assert not plan.calls and [kernel.fused is not None for kernel in plan.kernels] == [True]
    original, new = models_of(problem, emitted.text)
    given = problem.inputs(seed=1)
    with torch.no_grad():  # a product may round to TF32
        torch.testing.assert_close(new(*given), original(*given), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
def test_sanitized(sanitize: str, tmp_path: Path) -> None:
    """Of numbers that are none of the table: floats read as such."""
    forward = "F.layer_norm(self.table(x) + self.places[y], (24,))"
    init = "self.table = nn.Embedding(13, 24); self.places = nn.Parameter(torch.randn(9, 24))"
    problem = problem_of(tmp_path, forward, numbers(13, 3, 5), numbers(9, 3, 5, low=-9), init=init)
    _, plan, emitted = compile_problem(problem, Options(gradients=False))
    (kernel,) = plan.kernels
    source = cuda_of(emitted.text)
    library = compile_host(source, include_text=host_text(), sanitize=sanitize)
    script = Path(__file__).parent.parent / "host" / "sanitized_calls.py"
    counts = {"table_weight": 13 * 24, "places": 9 * 24, "x": 2 * 15, "y": 2 * 15}
    tensors = [str(counts.get(name, 15 * 24)) for name in (*kernel.read_only, *kernel.written)]
    calls = json.dumps([[kernel.name, [*tensors, *[3, 5][: len(plan.graph.symbols)]]]])
    process = run_sanitized([str(script), str(library), calls], sanitize, env={"PYTHONMALLOC": "malloc"})
    assert sanitizer_report(process.stderr) is None, process.stderr[-2000:]
    assert process.returncode == 0 and "nothing found" in process.stdout, process.stderr[-2000:]


def test_places_lie_in_memory_of_their_own(tmp_path: Path) -> None:
    """Who fills memory that nothing should read would make a place of a NaN's bits, and a GPU reads there."""
    init = "self.table = nn.Parameter(torch.randn(9, 4))"
    forward = "(self.table[x.argmin(-1)] * torch.softmax(x.sum(-1), 0)[:, None]).sum()"
    _, text, _, _ = made_of(problem_of(tmp_path, forward, "torch.randn(40, 9)", init=init), gradients=True)
    assert "# what only kernels see" in text
    assert re.search(r"_place = _empty\(.*torch\.int64\)", text)
    assert not re.search(r"_place = \w+(\.data_ptr\(\)| \+ )", text)
