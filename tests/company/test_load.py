"""`fusewright.load`: an emitted file as a module, on the CPU."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from company.work import at_once, inputs, step

import fusewright
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.host import loaded
from fusewright.options import Options
from fusewright.process import with_this_package


def test_the_kernels_run(new: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    launch = new._launch
    monkeypatch.setattr(new, "_launch", lambda kernel, *arguments: launched.append(kernel) or launch(kernel, *arguments))
    monkeypatch.setattr(torch, "relu", lambda *_: pytest.fail("the original ran"))
    found = step(new.ModelNew(16), inputs(1)[0])
    assert {name.split(" ")[0] for name in launched} >= set(new._KERNELS) and len(set(launched)) > len(new._KERNELS)
    assert found[0].shape == (2, 4, 10) and all(gradient.isfinite().all() for gradient in found)


def test_it_is_the_model(new: ModuleType) -> None:
    model, original = new.ModelNew(16), new.Model(16)
    original.load_state_dict(model.state_dict())
    (x,) = inputs(1)
    expected = original.double()(x.double())
    weight, scale = original.block.conv.weight, original.scale
    products = F.conv2d(x.abs().double(), weight.abs()).amax() * scale
    allowed = products * 2**-10  # both operands are rounded to TF32; a softmax does not enlarge it
    assert (model(x).double() - expected).abs().max() < allowed


def test_the_example_of_its_docstring(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (models / "softmax_rows.py").read_text().replace("torch.rand(6, 37)", "torch.rand(3, 5, 37)")
    (tmp_path / "model.py").write_text(text)
    _, _, emitted = compile_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    (tmp_path / "model_new.py").write_text(emitted.text)
    monkeypatch.chdir(tmp_path)
    (example,) = (e for e in doctest.DocTestFinder().find(loaded.load, "load", globs={"fusewright": fusewright}) if e.examples)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted == 3 and result.failed == 0


def test_the_same_text_is_the_same_module(file: Path, new: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(file.read_text())
    (tmp_path / "other.py").write_text(file.read_text() + "\n# another\n")
    before = set(sys.modules)
    again = at_once([lambda: fusewright.load(tmp_path / "elsewhere.py")] * 2 + [lambda: fusewright.load(str(tmp_path / "other.py"))] * 2)
    assert again[0] is again[1] is new and again[2] is again[3] is not new
    assert set(sys.modules) - before == {again[2].__name__}
    assert again[2].__name__.startswith("fusewright_loaded_") and new.__file__ == str(file)


def test_a_sibling_is_found(models: Path, tmp_path: Path) -> None:
    (tmp_path / "company_sibling.py").write_text("SCALE = 3.0\n")
    text = (models / "softmax_rows.py").read_text().replace("x * 2.0", "x * SCALE")
    (tmp_path / "model.py").write_text(f"from company_sibling import SCALE\n{text}")
    _, _, emitted = compile_problem(load_problem(tmp_path / "model.py"), Options(target="host"))
    (tmp_path / "model_new.py").write_text(emitted.text)
    assert fusewright.load(tmp_path / "model_new.py").SCALE == 3.0
    assert str(tmp_path) not in sys.path
    del sys.modules["company_sibling"]


def test_a_model_left_as_it_is_is_loaded_too(tmp_path: Path) -> None:
    text = "import torch\n\n\nclass Model(torch.nn.Linear):\n    ...\n\n\n_KERNELS = ()\n\n\nclass ModelNew(Model):\n    ...\n"
    (tmp_path / "plain_new.py").write_text(text)
    assert fusewright.load(tmp_path / "plain_new.py").ModelNew(2, 3)(torch.ones(1, 2)).shape == (1, 3)


@pytest.mark.parametrize(
    ("text", "target", "words"),
    [
        (None, "host", "new.py: no such file"),
        ("x = (", "host", "new.py:1: not Python"),
        ("x = 1\nraise KeyError('k')\n", "host", "new.py:2: importing it raised KeyError"),
        ("class ModelNew:\n    ...\n", "host", "not a file that Fusewright wrote"),
        ("class ModelNew:\n    ...\n", "gpu", "target 'gpu' is not one of auto, cuda, host"),
        ("_KERNELS, _CUDA_SOURCE = ('k',), 'void k( {'\n\n\nclass ModelNew:\n    ...\n", "host", "does not compile for the host"),
    ],
)
def test_what_it_refuses(text: str | None, target: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    if text is not None:
        path.write_text(text)
    before = set(sys.modules)
    with pytest.raises(fusewright.Refused, match=words) as refusal:
        fusewright.load(path, target)
    assert "\n" not in str(refusal.value).split(": its CUDA")[0] and set(sys.modules) == before


def test_no_gpu_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(fusewright.Refused, match="PyTorch finds no CUDA device"):
        fusewright.load(file, "cuda")
    module = fusewright.load(file, "auto")
    assert module._on_device is loaded._on_cpu


def test_importing_the_package_does_not_bring_torch() -> None:
    code = "import sys, fusewright; assert 'torch' not in sys.modules; fusewright.Refused; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=with_this_package(os.environ))
    with pytest.raises(AttributeError, match="has no attribute 'unload'"):
        fusewright.unload  # noqa: B018
