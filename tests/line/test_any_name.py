"""A file, what is in it and what is remarked there may be called anything."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from line import drawn

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.ir.names import FORBIDDEN
from fusewright.options import Options
from fusewright.verify.candidate import load_candidate

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "models"


@pytest.fixture(scope="module")
def known() -> list[str]:
    return drawn.words(compile_problem(load_problem(MODELS / "softmax_rows.py"), Options())[2].text)


def check(seed: int, known: list[str], folder: Path) -> None:
    """The drawn file is emitted, its kernels compile for the host and run, and compute what the original does."""
    draw = drawn.drawn(seed, known)
    problem = load_problem(drawn.write(draw, folder))
    _, _, emitted = compile_problem(problem, Options(gradients=seed % 4 == 0))
    candidate = load_candidate(emitted.text, "host", name="new.py", place=emitted.place)
    original, new, inputs = problem.model(), candidate.build_model(problem), problem.inputs()
    new.load_state_dict(original.state_dict())
    expected = original(*inputs)
    with candidate.launches() as launched:
        found = new(*inputs)
    assert launched, f"seed {seed}: no kernel ran: {new._fusewright_look.why}"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=lambda said: f"seed {seed}: {said}")
    by_name = dict(zip(draw.inputs, inputs, strict=True))
    with candidate.launches() as launched:
        assert torch.equal(new(**by_name), found), f"seed {seed}: by keywords"
    assert launched, f"seed {seed}: no kernel ran, called by keywords"
    if seed % 4 == 0:
        gradients = [torch.autograd.grad(model(*inputs).square().sum(), list(model.parameters())) for model in (new, original)]
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", range(8))
def test_names_and_remarks_may_be_any(seed: int, known: list[str], tmp_path: Path) -> None:
    check(seed, known, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 208))
def test_names_and_remarks_may_be_any_at_length(seed: int, known: list[str], tmp_path: Path) -> None:
    check(seed, known, tmp_path)


# ---- what was found


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fusewright", "optimize", str(path), "--target", "host", "--no-gradients", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def equal(path: Path, place: Path | None = None) -> str:
    """The model's file, emitted: its kernels run and compute the same. Gives the text."""
    problem = load_problem(path)
    _, _, emitted = compile_problem(problem, Options(gradients=False, output=place))
    candidate = load_candidate(emitted.text, "host", name="new.py", place=emitted.place)
    original, new, inputs = problem.model(), candidate.build_model(problem), problem.inputs()
    new.load_state_dict(original.state_dict())
    with candidate.launches() as launched:
        torch.testing.assert_close(new(*inputs), original(*inputs), rtol=1e-4, atol=1e-4)
    assert launched
    return emitted.text


MODEL = '''
import torch
from torch import nn
{imports}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {parameters}):
        return {result}


def get_inputs():
    return [torch.randn(4, 8) for _ in range({count})]


def get_init_inputs():
    return []
'''


def model(
    path: Path, result: str, parameters: str = "x", imports: str = "", init: str = "self.scale = nn.Parameter(torch.randn(8))"
) -> Path:
    count = len(parameters.split(","))
    path.write_text(MODEL.format(imports=imports, init=init, parameters=parameters, result=result, count=count))
    return path


def test_the_founding_model_under_its_published_name(tmp_path: Path) -> None:
    """Our comments quote the file's name, in which there is a helper's."""
    path = tmp_path / "Conv2d_GroupNorm_ResidualAdd_LogSumExp.py"
    source = (ROOT / "examples" / "conv2d_groupnorm_logsumexp.py").read_text()
    path.write_text(source)
    text, as_before = (
        compile_problem(load_problem(p), Options(gradients=False))[2].text
        for p in (path, ROOT / "examples" / "conv2d_groupnorm_logsumexp.py")
    )
    assert text.replace(path.name, "conv2d_groupnorm_logsumexp.py") == as_before


REMARKS = ["joined \\", "joined \\  ", "trigraph ??/", "\u00e9?/ \\", "ends */", "quotes '''", "page \x0c", "line \u2028 \x85 \x1c \\"]


def test_a_remark_neither_ends_nor_joins_a_line(tmp_path: Path) -> None:
    terms = "".join(f"\n            + (x * {i}).tanh()  # {remark}" for i, remark in enumerate(REMARKS, 2))
    text = equal(model(tmp_path / "model.py", f"({terms}\n        ) * x.mean(1, keepdim=True)  # {REMARKS[0]}"))
    remarks = [line for line in text[text.index("_CUDA_SOURCE") :].split("\n") if line.startswith("//")]
    assert sum("tanh" in line.rpartition("  <- ")[2] for line in remarks if "  <- " in line) == len(REMARKS)
    assert all(line.isascii() and line.isprintable() and not line.rstrip().endswith("\\") for line in remarks)


NAMES = ["try", "pass", "except me", "threading", "a \"b\" 'c'", "two\nlines", "größe π", "end \\", "x" * 200]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_file_may_be_called(name: str, tmp_path: Path) -> None:
    path = model(tmp_path / f"{name}.py", "(x * self.scale).softmax(-1)")
    text = compile_problem(load_problem(path), Options(gradients=False))[2].text
    assert not FORBIDDEN.search(text)
    remarks = [line for line in text[text.index("_CUDA_SOURCE") :].split("\n") if line.startswith("//")]
    assert any(" softmax" in line for line in remarks)
    assert all(line.isascii() and not line.rstrip().endswith("\\") for line in remarks)
    plain = compile_problem(load_problem(model(tmp_path / "model.py", "(x * self.scale).softmax(-1)")), Options(gradients=False))[2].text
    assert without_remarks(text) == without_remarks(plain)


def without_remarks(text: str) -> list[str]:
    return [line for line in text.split("\n") if not line.startswith("//")]


@pytest.mark.parametrize(
    "parameters",
    ["len, super_, list, range", "torch, self_, sizes, tensors", "x, x_0, x_1, modules", "x_0, x, kept, scratch", "NAN, M_PI, I, linux",
     "q, k, v, out", "expf, x, x_ptr, x_acc", "_x, x_, grad_mul, mul", "größe, ModelNew, super, type",
     "threading, _run, _forward, arguments"],
)  # fmt: skip
def test_an_input_may_be_called(parameters: str, tmp_path: Path) -> None:
    names = parameters.split(", ")
    a, b, c, d = names
    path = model(tmp_path / "model.py", f"({a} * self.scale + {c}).exp() / ({b}.abs() * {d}).sum(1, keepdim=True)", parameters)
    problem = load_problem(path)
    candidate = load_candidate(equal(path), "host", name="new.py")
    new, inputs = candidate.build_model(problem), problem.inputs()
    with candidate.launches() as launched:
        by_name = new(**dict(zip(names, inputs, strict=True)))
    assert launched and torch.equal(by_name, new(*inputs))


@pytest.mark.parametrize("names", ["_launch _run len", "struct aten ModelNew", "_Region _CUDA_SOURCE all"])
def test_functions_of_the_model_may_be_called_as_ours(names: str, tmp_path: Path) -> None:
    functions = "".join(f"\n\ndef {name}(x):\n    return x.tanh() + {i}\n" for i, name in enumerate(names.split(), 2))
    result = " * ".join(f"{name}(x)" for name in names.split())
    text = equal(model(tmp_path / "model.py", f"{result} * self.scale", imports=functions))
    assert "namespace of its own" in text


def test_a_law_is_told_without_its_place_in_a_file_of_a_forbidden_name(tmp_path: Path) -> None:
    path = model(tmp_path / "try except.py", "(self.linear(x) + self.scale).mean(1)", init=(
        "self.linear, self.scale = nn.Linear(8, 6), nn.Parameter(torch.randn(6))"))  # fmt: skip
    text = compile_problem(load_problem(path), Options(gradients=False))[2].text
    assert " law: " in text and not FORBIDDEN.search(text)


def test_what_both_import_is_no_matter(tmp_path: Path) -> None:
    text = equal(model(tmp_path / "model.py", "(x * self.scale).tanh() + math.pi", imports="import functools, math, struct"))
    assert "namespace of its own" not in text


def test_attributes_may_be_called_anything(tmp_path: Path) -> None:
    init = "self.add_module('class', nn.LayerNorm(8)); self.register_parameter('we\"ird \\\\ größe', nn.Parameter(torch.ones(8)))"
    result = "getattr(self, 'class')(x) * getattr(self, 'we\"ird \\\\ größe')"
    equal(model(tmp_path / "model.py", result, init=init))


def test_parameters_keep_their_names(tmp_path: Path) -> None:
    text = equal(model(tmp_path / "model.py", "(len * self.scale).tanh() + super_", "len, super_"))
    assert "def forward(self, len, super_):" in text


# ---- what a model's file relies on besides itself

LAYERS = """
import torch
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return x.tanh() * {factor}
"""


def imported(path: Path) -> object:
    """As any program would import it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sibling(folder: Path, factor: int) -> Path:
    folder.mkdir()
    (folder / "layers_beside.py").write_text(LAYERS.format(factor=factor))
    return model(
        folder / "model.py", "self.block(x) * self.scale", imports="from layers_beside import Block",
        init="self.block = Block(); self.scale = nn.Parameter(torch.ones(8))",
    )  # fmt: skip


def test_a_sibling_is_imported_from_elsewhere(tmp_path: Path) -> None:
    path, place = sibling(tmp_path / "models", 2), tmp_path / "out" / "new.py"
    place.parent.mkdir()
    done = run(path, "-o", str(place))
    assert done.returncode == 0, done.stderr
    assert "not self-contained" in done.stdout + done.stderr
    assert str(tmp_path) not in place.read_text(), "a path of this machine"
    code = "import new, torch; print(new.ModelNew()(torch.zeros(4, 8)).sum().item())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place.parent)
    assert there.stdout.strip() == "0.0", there.stderr


def test_siblings_of_one_name_are_not_mixed_up(tmp_path: Path) -> None:
    paths, x = [sibling(tmp_path / name, factor) for name, factor in (("a", 2), ("b", 3))], torch.ones(4, 8)
    problems = [load_problem(path) for path in paths]
    for problem, factor in zip(problems, (2, 3), strict=True):
        assert torch.equal(problem.model()(x), x.tanh() * factor)
    (tmp_path / "out").mkdir()
    places = [tmp_path / "out" / name for name in ("a.py", "b.py")]
    for path, place in zip(paths, places, strict=True):
        place.write_text(equal(path, place))
    modules = [imported(place) for place in places]
    for module, factor in zip(modules, (2, 3), strict=True):
        assert torch.equal(module.ModelNew()(x), x.tanh() * factor)  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", [".", "elsewhere"])
def test_a_model_that_reads_its_place(folder: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "factor.txt").write_text("3")
    imports = "from pathlib import Path\n\nFACTOR = float((Path(__file__).parent / 'factor.txt').read_text())\n"
    path = model(tmp_path / "model.py", "(x * self.scale).tanh() * FACTOR", imports=imports)
    place = tmp_path / folder / "new.py"
    text = equal(path, place)
    assert str(tmp_path) not in text
    place.write_text(text)
    x = torch.ones(4, 8)
    module = imported(place)
    assert module.FACTOR == 3 and module.ModelNew()(x).shape == x.shape  # type: ignore[attr-defined]


def test_future_imports_stay_first(tmp_path: Path) -> None:
    path = sibling(tmp_path / "models", 2)
    path.write_text('"""A docstring."""\nfrom __future__ import annotations\n' + path.read_text())
    equal(path, tmp_path / "new.py")
