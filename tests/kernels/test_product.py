"""Matrix products in float32 on the tensor cores: over awkward shapes on the host, in whole models, and what nvcc makes of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernels.conv.chains import C, N
from kernels.conv.harness import launch, load
from kernels.conv.test_conv_host import check_sanitized
from kernels.conv.test_conv_nvcc import compiled
from kernels.frame import a_part
from torch import Tensor

from fusewright.codegen.mma.conv import Epilogue, Pointwise
from fusewright.codegen.mma.conv_spec import VALUE
from fusewright.codegen.mma.product import (
    Product,
    ProductTile,
    Triangle,
    library_ms,
    product_kernel,
    product_ms,
    product_tile,
)
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices, own_of
from fusewright.frontend.problem import load_problem
from fusewright.ir.cpp import to_cpp
from fusewright.ir.expr import select
from fusewright.options import Options
from fusewright.schedule.product_fusion import product_axes, products
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

NARROW, WIDE = ProductTile(fragments=8), ProductTile()
SHAPES = {  # rows, depth, columns; the tile; whether the matrix lies by columns, and the rows do
    "whole tiles": (128, 64, 128, WIDE, False),
    "one row": (1, 32, 16, NARROW, False),
    "one step and a part, by columns": (70, 45, 65, NARROW, True),
    "odd columns, split": (130, 36, 201, replace(WIDE, splits=2), False),
    "odd columns": (66, 100, 33, NARROW, False),
    "few columns": (257, 100, 17, WIDE, False),
    "many tiles, by columns": (150, 32, 300, WIDE, True),
    "deep, split": (40, 513, 24, replace(NARROW, splits=3), True),
    "a depth that varies": (70, 99, 33, NARROW, True, False, True),
    "one warpgroup": (70, 99, 130, ProductTile(1, 16), False),
    "rows by columns": (70, 45, 40, NARROW, False, True),
    "both by columns": (135, 40, 33, NARROW, True, True),
}


def multiplied(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tile: ProductTile,
    transposed: bool = False,
    rows_transposed: bool = False,
    varies: bool = False,
) -> Tensor:
    (rows, depth), columns = x.shape, weight.shape[0]
    product = Product(depth, columns, bias is not None, transposed, rows_transposed, varies)
    text = product_kernel("k", product, Epilogue(), tile)
    out = torch.full((rows, columns), float("nan"))
    x = x.t().contiguous() if rows_transposed else x
    values = {"input": x, "weight": weight.t().contiguous() if transposed else weight, "out": out, "rows": rows, "depth": depth}
    values |= {} if bias is None else {"bias": bias}
    sums = torch.full((tile.splits * rows * columns,), float("nan"))
    launch(load(text), text, **values, sums=sums)
    return out


@pytest.mark.parametrize(("transposed", "rows_transposed"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("columns", [40, 33])
def test_batches(transposed: bool, rows_transposed: bool, columns: int) -> None:
    x, matrices = torch.randn(3, 70, 45), torch.randn(3, columns, 45)
    product = Product(45, columns, False, transposed, rows_transposed, varies=True, columns_vary=True, batched=True)
    text = product_kernel("k", product, Epilogue(), NARROW)
    out = torch.full((3, 70, columns), float("nan"))
    values = {"input": x.mT.contiguous() if rows_transposed else x, "weight": matrices.mT.contiguous() if transposed else matrices}
    launch(load(text), text, **values, out=out, batch=3, rows=70, depth=45, columns=columns)
    torch.testing.assert_close(out, x @ matrices.mT, rtol=1e-5, atol=2e-5)


def plain(x: Tensor, weight: Tensor) -> Tensor:
    """One number after the other, each time rounded: what a thread without tensor cores does."""
    sum_ = torch.zeros(x.shape[0], weight.shape[0])
    for k in range(x.shape[1]):
        sum_ = (sum_.double() + x[:, k, None].double() * weight[:, k].double()).float()
    return sum_


@pytest.mark.parametrize("shape", SHAPES, ids=lambda name: name.replace(" ", "-"))
def test_shapes(shape: str) -> None:
    rows, depth, columns, tile, *transposed = SHAPES[shape]
    x, weight, bias = torch.randn(rows, depth), torch.randn(columns, depth), torch.randn(columns)
    exact = x.double() @ weight.double().t() + bias.double()
    allowed = 2.0**-22 * (x.abs().double() @ weight.abs().double().t() + bias.abs().double())
    assert bool(((multiplied(x, weight, bias, tile, *transposed).double() - exact).abs() <= allowed).all())


def test_unaligned_operands() -> None:
    x, weight = torch.randn(33 * 64 + 1)[1:].view(33, 64), torch.randn(40 * 64 + 3)[3:].view(40, 64)
    torch.testing.assert_close(multiplied(x, weight, None, WIDE), x @ weight.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("signs", ["both", "one"])
@pytest.mark.parametrize("depth", [32, 64, 512, 1024])
def test_as_exact_as_plain_arithmetic(depth: int, signs: str) -> None:
    """No worse than twice the error of float32 sums, though the tensor cores cut off: by far the most where all have one sign."""
    x, weight = torch.randn(64, depth), torch.randn(64, depth) / depth**0.5
    if signs == "one":
        x, weight = x.abs(), weight.abs()
    exact = x.double() @ weight.double().t()
    ours, theirs = ((found.double() - exact).abs() for found in (multiplied(x, weight, None, NARROW), plain(x, weight)))
    assert ours.max() < 2 * theirs.max()
    assert ours.square().mean() < (2 * theirs.square().mean().sqrt()) ** 2


@pytest.mark.parametrize(("tile", "transposed"), [(WIDE, False), (replace(NARROW, splits=2), True)], ids=str)
def test_what_is_not_finite(tile: ProductTile, transposed: bool) -> None:
    """An infinity stays one: its two parts would be NaN, or an infinity of each sign. Numbers that round up to one stay numbers."""
    x, weight = torch.randn(150, 96), torch.rand(70, 96) + 0.5
    x[3, 5], x[77, 90], x[100, 40] = torch.inf, -torch.inf, torch.nan
    weight[9] = 1.0  # of which nothing is in the low part
    x[120, 0], x[120, 1:] = torch.finfo(torch.float32).max, 0.0
    weight[11, 0] = 0.5
    exact, out = (x.double() @ weight.double().t()).float(), multiplied(x, weight, None, tile, transposed, transposed)
    assert torch.equal(exact.isfinite(), out.isfinite())
    assert torch.equal(exact[3], out[3]) and torch.equal(exact[77], out[77]) and bool(out[100].isnan().all())
    assert out[120, 11] == x[120, 0] * 0.5


@pytest.mark.parametrize("tile", [NARROW, replace(NARROW, splits=2)], ids=str)
@pytest.mark.parametrize("columns", [33, 40])
def test_the_product_is_saved_where_there_is_memory_for_it(tile: ProductTile, columns: int) -> None:
    double = Pointwise(VALUE * 2.0)
    text = product_kernel("k", Product(64, columns, True, saves=True), Epilogue(before=double), tile)
    x, weight, bias = torch.randn(70, 64), torch.randn(columns, 64), torch.randn(columns)
    library, sums = load(text), torch.empty(tile.splits * 70 * columns)
    for keeps in (True, False):
        out, saved = torch.full((70, columns), float("nan")), torch.full((70, columns), float("nan"))
        values = {"input": x, "weight": weight, "bias": bias, "out": out, "sums": sums, "rows": 70, "saved": saved if keeps else 0}
        launch(library, text, **values)
        torch.testing.assert_close(out, 2 * (x @ weight.t() + bias), rtol=1e-5, atol=1e-4)
        assert torch.equal(saved * 2, out) if keeps else bool(saved.isnan().all())


TRIANGLES = [Triangle(True), Triangle(False), Triangle(True, -40), Triangle(True, 70), Triangle(False, 65), Triangle(False, -3)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("tile", [NARROW, replace(NARROW, splits=2)], ids=str)
@pytest.mark.parametrize("triangle", TRIANGLES, ids=str)
def test_triangles(triangle: Triangle, tile: ProductTile) -> None:
    """Of tiles that nobody wants one step is multiplied: all of a column's NaN lies in the others. Those saved for backward are whole."""
    inside = triangle.diagonal >= C - N if triangle.lower else triangle.diagonal <= C - N
    body = Pointwise(select(inside, VALUE, 0.0))
    text = product_kernel("k", Product(96, 201, saves=True, triangle=triangle), Epilogue(before=body), tile)
    x, weight, sums = torch.randn(260, 96), torch.randn(201, 96), torch.empty(tile.splits * 260 * 201)
    x[5, 90], weight[150, 95] = torch.inf, torch.nan
    right, library = x @ weight.t(), load(text)
    for keeps in (False, True):
        out, saved = torch.full((260, 201), float("nan")), torch.full((260, 201), float("nan"))
        launch(library, text, input=x, weight=weight, out=out, sums=sums, rows=260, saved=saved if keeps else 0)
        expected = torch.tril(right, triangle.diagonal) if triangle.lower else torch.triu(right, triangle.diagonal)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4, equal_nan=True)
        if keeps:
            torch.testing.assert_close(saved, right, rtol=1e-5, atol=1e-4, equal_nan=True)


def test_half_of_a_square_takes_less() -> None:
    whole, half = (Product(4096, 4096, triangle=triangle) for triangle in (None, Triangle(True)))
    times = [product_ms(product, product_tile(product, 4096), 4096) for product in (whole, half)]
    assert 0.5 * times[0] < times[1] < 0.6 * times[0]


def test_tiles_are_chosen_by_counting() -> None:
    assert product_tile(Product(1024, 4096), 8192).splits == 1  # more than enough blocks
    assert product_tile(Product(8192, 256), 128).splits > 1  # two blocks alone would take all the time
    assert product_tile(Product(256, 64), 4096).fragments == 8
    few, many = ProductTile(), ProductTile(splits=4)
    assert product_ms(Product(8192, 256), many, 128) < product_ms(Product(8192, 256), few, 128)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize(("tile", "transposed"), [(WIDE, False), (replace(NARROW, splits=2), True)], ids=str)
def test_sanitized(sanitize: str, tile: ProductTile, transposed: bool) -> None:
    text = product_kernel("k", Product(70, 37, True, transposed, transposed), Epilogue(), tile)
    floats = {"input": 131 * 70, "weight": 37 * 70, "bias": 37, "out": 131 * 37, "sums": tile.splits * 131 * 37}
    check_sanitized(text, floats, {"rows": 131}, sanitize)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize(
    ("product", "tile"),
    [
        (Product(1024, 1000, True), NARROW),
        (Product(1024, 1000, True), WIDE),
        (Product(1024, 1000, True), replace(WIDE, splits=2)),
        (Product(256, 1000, True), WIDE),
        (Product(1024, 1000, True, rows_transposed=True), WIDE),
        (Product(1024, 1000, True, varies=True, columns_vary=True, batched=True), WIDE),
    ],
    ids=["narrow", "wide", "split", "shallow", "rows by columns", "sizes that vary"],
)
def test_compiles_within_the_plan(product: Product, tile: ProductTile, tmp_path: Path) -> None:
    """Without spills, and no product waits for the one before it (`compiled` asserts that)."""
    found, _ = compiled(product_kernel("k", product, Epilogue(), tile), tmp_path, "sm_90a")
    kernels = {name: what for name, what in found.items() if "kernelILi" in name}
    assert len(kernels) == 2
    assert all(registers <= 255 and spilled == 0 for registers, spilled in kernels.values()), found


# ---- whole models

MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(48, 40)
        self.second = nn.Linear(40, 32, bias=False)
        self.scale = nn.Parameter(torch.rand(40) + 0.5)
        self.matrix = nn.Parameter(torch.randn(48, 24) / 7)

    def forward(self, x, y):
        return {forward}


def get_inputs():
    return [torch.randn{shape}, torch.randn{shape}]


def get_init_inputs():
    return []
"""

FORWARDS = {  # what is returned; how many products; kernels; calls to the library
    "a chain": ("F.gelu(self.first(x) * self.scale)", (5, 48), 1, 1, 0),
    "alone": ("self.first(x)", (130, 48), 1, 1, 0),
    "rows in three dimensions": ("torch.tanh(self.first(x)) + y[:1, :1, :40]", (3, 5, 48), 1, 1, 0),
    "with another tensor": ("self.first(x) * torch.sigmoid(y[..., :40])", (3, 5, 48), 1, 1, 0),
    "one after the other": ("self.second(F.relu(self.first(x)))", (9, 48), 2, 2, 0),
    "a softmax behind it": ("torch.softmax(self.first(x) * 2, -1)", (9, 48), 1, 2, 0),
    "twice read": ("(lambda z: (z.flip(0), z * z.amax(0)))(self.first(x))", (9, 48), 1, 3, 0),
    "a matrix by columns": ("F.relu(x @ self.matrix) + 1", (9, 48), 1, 1, 0),
    "read elsewhere": ("self.first(x).flip(0) * 2", (9, 48), 1, 2, 0),
    "of a computed matrix": ("torch.mm(x, torch.exp(self.matrix))", (9, 48), 1, 2, 0),
    "of a transposed matrix": ("torch.relu(torch.matmul(x, self.first.weight.t()))", (9, 48), 1, 1, 0),
    "of transposed rows": ("torch.relu(x.t() @ y) * 2", (33, 24), 1, 1, 0),
    "of other shapes": ("self.first(x.flatten(1).view(-1, 48)) * 2", (4, 96), 1, 1, 0),
    "of rows that lie apart": ("self.first(x[:, 1]) * 2", (4, 3, 48), 1, 1, 0),
    "of rows without the first of each": ("torch.sin(self.first(x[:, 1:]))", (4, 70, 48), 1, 1, 0),
    "of part of a row": ("F.relu(F.linear(x[..., 5:24], self.matrix[:19, :24].t())) + 1", (3, 5, 48), 1, 1, 0),
    "of which a triangle is taken": ("torch.tril(x @ y.mT, -1) * 2", (150, 48), 1, 1, 0),
    "of which a triangle is taken behind a function": ("torch.triu(F.gelu(x @ y.mT), 3) + 1", (150, 48), 1, 1, 0),
    "of batches of which a triangle is taken": ("torch.exp(torch.tril(x @ y.mT * 0.1))", (2, 150, 48), 1, 1, 0),
    "of rows of which a triangle is taken in batches": ("torch.tril(self.first(x))", (3, 50, 48), 1, 1, 0),
    "taken with and without a triangle": ("(lambda z: torch.tril(z) + z)(x @ y.mT)", (150, 48), 1, 1, 0),
    "of every other column": ("x[..., ::2] @ y.mT[:, ::2]", (3, 33, 48), 0, 0, 1),
    "of heads": ("(lambda q, k: q @ k.mT * 0.25)(*(z.view(3, 20, 3, 16).transpose(1, 2) for z in (x, y)))", (3, 20, 48), 1, 1, 0),
    "of heads, transposed rows": ("(lambda q, k: q.mT @ k)(*(z.view(3, 20, 3, 16).transpose(1, 2) for z in (x, y)))", (3, 20, 48), 1, 1, 0),
    "heads put together": (
        ("self.second(torch.relu(x.view(3, 20, 5, 16).transpose(1, 2) @ y[:, :16, :80].view(3, 16, 5, 16).transpose(1, 2))"
        ".transpose(1, 2).reshape(3, 20, 80)[..., :40])"), (3, 20, 80), 2, 2, 0,
    ),
    "stored in another order of the same shape": ("torch.sin((x @ y.mT).transpose(0, 1))", (3, 3, 17, 19), 1, 1, 0),
    "batches and rows change places": ("torch.sin((x @ y).transpose(0, 1))", (20, 20, 20), 1, 1, 0),
    "rows and columns change places": ("torch.sin((x @ y).mT)", (3, 20, 20), 1, 2, 0),
    "of joined batches": (
        "torch.bmm(x.view(3, 20, 3, 16).transpose(1, 2).reshape(9, 20, 16), y.view(3, 20, 3, 16).permute(0, 2, 3, 1).reshape(9, 16, 20))",
        (3, 20, 48), 1, 1, 0,
    ),
    "of rows from the last to the first": ("torch.sin(x.flip(0) @ self.matrix)", (70, 48), 1, 1, 0),
    "of a product saved in another order": (
        (
            "(lambda q, k: torch.bmm((q @ k.mT).transpose(0, 1).reshape(9, 20, 20), torch.sin(q).reshape(9, 20, 16)))"
            "(*(z.view(3, 20, 3, 16).transpose(1, 2) for z in (x, y)))"
        ),
        (3, 20, 48), 2, 3, 0,
    ),
    "of the same matrix twice": ("x.mT @ x[..., 3:40]", (3, 33, 48), 1, 1, 0),
    "of an expanded batch": ("torch.bmm(x.mT, y[:1].expand(3, -1, -1))", (3, 33, 48), 1, 1, 0),
    "of a batch of matrices": ("torch.relu(torch.bmm(torch.sin(x), y)) * y", (3, 20, 20), 1, 2, 0),
    "of batches of transposed matrices": ("torch.matmul(x, y.transpose(-1, -2)) * 2 + y.mean()", (2, 3, 17, 19), 1, 2, 0),
    "of batches of transposed rows": ("torch.matmul(x.mT, y)", (3, 33, 19), 1, 1, 0),
    "of transposed rows and one matrix": ("torch.matmul(x.mT, self.matrix)", (3, 48, 19), 1, 1, 0),
}


def test_a_bias_that_is_one_number(tmp_path: Path) -> None:
    front = front_of(tmp_path, "F.linear(x, self.first.weight, self.scale[:1] * 2)", (5, 48))
    assert own_of(front.finish(Choices(own=products(front.graph)))[0]) == frozenset()


@pytest.mark.parametrize("name", ["done", "at", "sums", "sum", "split", "c", "depth", "choose", "COLUMNS"])
def test_names_that_kernels_use(name: str, tmp_path: Path) -> None:
    """Of a split product, which has both kernels."""
    text = MODEL.replace("{forward}", f"F.elu(self.first(x)) * {name}").replace("x, y):", f"x, {name}):")
    text = text.replace("nn.Linear(48, 40)", "nn.Linear(1024, 40)")
    text = text.replace("torch.randn{shape}, torch.randn{shape}", "torch.randn(3, 1024), torch.randn(3, 40)")
    (tmp_path / "model.py").write_text(text)
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    made, emitted = front.finish(Choices(own=products(front.graph)))
    assert len(made.kernels) == 1 and "merge<<<" in emitted.text
    new, original = load_candidate(emitted.text, "host", name="new.py").build_model(front.problem), front.problem.model()
    new.load_state_dict(original.state_dict())
    x, other = front.problem.inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(x, other), original(x, other), rtol=1e-5, atol=1e-5)


def test_the_depth_of_many_rows_is_not_split() -> None:
    """A file for few rows, called with many: there are tiles enough, and the sums of all would fill memory."""
    text = product_kernel("k", Product(1024, 40), Epilogue(), replace(NARROW, splits=2), split_rows=70)
    library = load(text)
    weight = torch.randn(40, 1024)
    for rows in (70, 71):
        x, out, sums = torch.randn(rows, 1024), torch.full((rows, 40), float("nan")), torch.full((2 * 70 * 40,), float("nan"))
        launch(library, text, input=x, weight=weight, out=out, sums=sums, rows=rows)
        torch.testing.assert_close(out, x @ weight.t(), rtol=1e-5, atol=1e-4)
        assert bool(sums.isnan().all()) == (rows > 70)


def front_of(folder: Path, forward: str, shape: tuple[int, ...]) -> Front:
    (folder / "model.py").write_text(MODEL.replace("{forward}", forward).replace("{shape}", str(shape)))
    return read_problem(load_problem(folder / "model.py"), Options(target="host"))


@pytest.mark.parametrize("case", a_part(FORWARDS, 4))
def test_models(case: str, tmp_path: Path) -> None:
    forward, shape, ours, kernels, calls = FORWARDS[case]
    front = front_of(tmp_path, forward, shape)
    made, emitted = front.finish(Choices(own=products(front.graph)))
    found = (len([k for k in made.kernels if k.fused is not None]), len(made.kernels), len(made.calls))
    assert found == (ours, kernels, calls), (found, emitted.text)
    assert (", wanted);" in emitted.text) == ("which a triangle" in case and "of rows" not in case)
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host"))
    assert verdict.passed, verdict.worst


def test_backward_is_handed_the_product(tmp_path: Path) -> None:
    """It is not computed again, and who only infers does not write it."""
    front = front_of(tmp_path, *FORWARDS["a chain"][:2])
    text = front.finish(Choices(own=products(front.graph)))[1].text
    assert "is not None else 0" in text and "saves=True" in text
    assert "addmm(" not in text and "functional.linear" in text  # the meaning has it


BACKWARD = {  # what is returned; how many different products backward has
    "heads": (
        ("(lambda q, k, v: (torch.softmax(q @ k.mT * 0.2, -1) @ v).transpose(1, 2).reshape(3, 20, 40))"
        "(*(z.view(3, 20, 2, 20).transpose(1, 2) for z in (self.first(x), self.first(y), F.linear(x, self.first.weight))))"),
        (3, 20, 48), 6,
    ),
    "a chain": ("F.gelu(self.first(x) * self.scale)", (40, 48), 1),
    "two layers": ("self.second(F.relu(self.first(x)))", (40, 48), 3),
    "a matrix by columns": ("F.relu(x @ self.matrix) + 1", (40, 48), 1),
    "matrices of parameters": ("torch.bmm(torch.sin(self.first.weight).view(2, 20, 48), torch.tanh(y)) * 2", (2, 48, 24), 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", BACKWARD, ids=lambda name: name.replace(" ", "-"))
def test_products_in_backward(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where forward has products of ours, backward has too; kernels of one shape stand there once."""
    monkeypatch.setattr("fusewright.schedule.product_fusion.pays", lambda anchor, plan: True)
    forward, shape, count = BACKWARD[case]
    front = front_of(tmp_path, forward, shape)
    text = front.finish(Choices())[1].text
    backward = text[text.index("_CUDA_GRADIENTS = ") : text.index("_GRADIENT_KERNELS = ")]
    functions = [part for part in text.split("\ndef ") if "_grad(" in part.split("\n", 1)[0]]
    assert backward.count("_detail {") == count and functions and not any("mm(" in function for function in functions)
    candidate = load_candidate(text, "host", name="new.py")
    found = verify(front.problem, candidate, graph=front.graph, options=Options(target="host"))
    assert found.passed, found.worst
    assert "_detail {" not in front.finish(Choices(own=frozenset()))[1].text


def test_the_gradient_of_a_sum_reaches_a_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number that stands for all: a kernel of ours that multiplies reads it from memory, where all must be."""
    monkeypatch.setattr("fusewright.schedule.product_fusion.pays", lambda anchor, plan: True)
    front = front_of(tmp_path, *BACKWARD["two layers"][:2])
    new = load_candidate(front.finish(Choices())[1].text, "host", name="new.py").build_model(front.problem)
    old = front.problem.model()
    new.load_state_dict(old.state_dict())
    x, y = front.problem.inputs()
    for model in (new, old):
        model(x, y).sum().backward()
    for ours, theirs in zip(new.parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)


def test_products_of_one_shape_are_one_kernel(tmp_path: Path) -> None:
    """As the layers of a network are: with other weights, and other names of what is made of them."""
    forward = "torch.relu(F.linear(torch.relu(F.linear(x, torch.sin(y))), torch.cos(y)))"
    front = front_of(tmp_path, forward, (48, 48))
    made, emitted = front.finish(Choices(own=products(front.graph)))
    ours = [kernel for kernel in made.kernels if kernel.fused is not None]
    assert len(ours) == 2 and emitted.text.count("_detail {") == 1 and emitted.text.count(f'_launch("{ours[0].name}"') == 2
    candidate = load_candidate(emitted.text, "host", name="new.py")
    assert verify(front.problem, candidate, graph=front.graph, options=Options(target="host")).passed


@pytest.mark.parametrize(("rows", "ours"), [(5, False), (128, False), (1 << 16, True)])
def test_taken_over_where_that_pays(rows: int, ours: bool, tmp_path: Path) -> None:
    """Without timing: products with much to do, where cuBLAS takes about twice as long."""
    text = MODEL.replace("{forward}", "F.gelu(self.first(x))").replace("{shape}", f"({rows}, 512)")
    text = text.replace("nn.Linear(48, 40)", "nn.Linear(512, 512)")
    (tmp_path / "model.py").write_text(text)
    front = read_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    assert bool(own_of(front.finish(Choices())[0])) is ours
    assert own_of(front.finish(Choices(own=frozenset()))[0]) == frozenset()


def test_the_prediction_is_what_was_measured() -> None:
    """Of benchmarks/results/products.txt, in ms on an H200."""
    measured = {
        (4096, 4096, 4096): (1.090, 2.82), (1024, 1024, 1024): (0.0307, 0.0661), (8192, 1024, 4096): (0.613, 1.48),
        (8192, 2048, 1000): (0.281, 0.73), (128, 8192, 1024): (0.0454, 0.074), (65536, 128, 512): (0.134, 0.236),
        (16384, 1024, 64): (0.0359, 0.061), (4093, 1021, 2039): (0.224, 0.344),
    }  # fmt: skip
    for (rows, depth, columns), (ours, library) in measured.items():
        product = Product(depth, columns)
        assert product_ms(product, product_tile(product, rows), rows) == pytest.approx(ours, rel=0.05)
        assert 0.8 * library < library_ms(product, rows) < 1.05 * library


def test_not_where_the_library_may_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TF32 the library is three times as fast as a product of split numbers can be."""
    monkeypatch.setattr("fusewright.schedule.product_fusion.tf32_allowed", lambda: True)
    front = front_of(tmp_path, "F.gelu(self.first(x))", (5, 48))
    assert own_of(front.finish(Choices(own=products(front.graph)))[0]) == frozenset()


def test_rows_of_several_dimensions_are_one() -> None:
    at = product_axes((3, 5, 7))
    assert [to_cpp(c.expr()) for c in at] == ["(n / 5)", "(n % 5)", "c"]
