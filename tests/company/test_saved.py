"""A module saved whole loads in a new process, and gives there what it gave here, bit by bit."""

from __future__ import annotations

import copy
import importlib
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from company.work import inputs, same, step
from torch import nn

import fusewright
from fusewright.process import with_this_package

CLASSES = """
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.register_buffer("shift", torch.arange(12.0))

    def forward(self, x):
        return torch.softmax(torch.tanh(self.norm(x)) + self.shift, -1)


class Opinionated(Scaled):
    def __reduce__(self):
        return Opinionated, ()
"""
LOAD = """
import json, sys, torch, fusewright

importable, *files = sys.argv[1:]
sys.path.insert(0, importable)
said = {}
for file in files:
    model, x, expected = torch.load(file, weights_only=False)
    optimised = isinstance(model, fusewright.Optimized)
    space, launched = fusewright.about(model).spaces["training"] if optimised else sys.modules[type(model).__module__], []
    launch = space._launch
    space._launch = lambda kernel, *arguments: launched.append(kernel) or launch(kernel, *arguments)
    found = model(x)
    found.sum().backward()
    said[file] = [space.__name__, type(model).__name__, len(launched), torch.equal(found, expected)]
fusewright.load("model_new.py")
said["a part"] = str(torch.load("part", weights_only=False))
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def folder(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where classes can be imported from, here and in the new process."""
    folder = tmp_path_factory.mktemp("importable")
    (folder / "company_classes.py").write_text(CLASSES)
    (folder / "company_new.py").write_text(file.read_text())
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def scaled(folder: Path) -> ModuleType:
    return importlib.import_module("company_classes")


@pytest.fixture(scope="module")
def elsewhere(file: Path, folder: Path, new: ModuleType, scaled: ModuleType) -> dict[str, Any]:
    """What a new process says of each model that was saved here: its class, how many kernels it launched, whether its result is ours."""
    x, y = inputs(1)[0], torch.randn(5, 12)
    saved = {
        "imported": (importlib.import_module("company_new").ModelNew(16), x),
        "loaded": (new.ModelNew(16), x),
        "optimised": (fusewright.optimize(scaled.Scaled(), [y], verify=False), y),
        "optimised for the host": (fusewright.optimize(scaled.Scaled(), [y], target="host", verify=False), y),
    }
    place = folder / "saved"
    place.mkdir()
    for name, (model, given) in saved.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fusewright.NotInUse)  # one is for a GPU
            torch.save((model, given, model(given).detach()), place / name)
    torch.save(new.ModelNew(16).block, place / "part")
    (place / "model_new.py").write_text(file.read_text())
    command = [sys.executable, "-c", LOAD, str(folder), *saved]
    done = subprocess.run(command, capture_output=True, text=True, env=with_this_package(os.environ), cwd=place)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_of_a_file_that_was_imported(elsewhere: dict[str, Any]) -> None:
    """On the CPU such a file runs the original."""
    assert elsewhere["imported"] == ["company_new", "ModelNew", 0, True]


def test_of_a_file_that_was_loaded(elsewhere: dict[str, Any], new: ModuleType) -> None:
    """The text is saved with it: the file may be gone."""
    name, kind, launched, equal = elsewhere["loaded"]
    assert (name, kind) == (new.__name__, "ModelNew") and launched >= 3 and equal


@pytest.mark.parametrize("saved", ["optimised", "optimised for the host"])
def test_of_a_module_that_was_optimised(saved: str, elsewhere: dict[str, Any]) -> None:
    name, kind, launched, equal = elsewhere[saved]
    assert name.startswith("fusewright_module_") and kind == "Scaled" and equal
    assert (launched > 0) == (saved == "optimised for the host")


def test_a_part_of_a_loaded_file_after_loading_it(elsewhere: dict[str, Any]) -> None:
    """Other classes of the file are found by its module's name, which is the same in every process."""
    assert "Conv2d(64, 16" in elsewhere["a part"]


def test_copies(new: ModuleType, scaled: ModuleType) -> None:
    x, y = inputs(1)[0], torch.randn(5, 12)
    for model, given in ((new.ModelNew(16), x), (fusewright.optimize(scaled.Scaled(), [y], target="host", verify=False), y)):
        for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(model, protocol=0))):
            assert type(made) is type(model) and same(step(made, given), step(model, given))
            assert not {p.data_ptr() for p in made.parameters()} & {p.data_ptr() for p in model.parameters()}
        shallow = copy.copy(model)
        assert type(shallow) is type(model) and shallow.state_dict().keys() == model.state_dict().keys()


def test_what_others_say_of_pickling_stands(new: ModuleType, scaled: ModuleType) -> None:
    """A model with its own `__reduce__`, and a class derived from ours."""
    opinionated = fusewright.optimize(scaled.Opinionated(), [torch.randn(5, 12)], verify=False)
    assert type(copy.deepcopy(opinionated)) is scaled.Opinionated

    made = copy.deepcopy(Derived.of(new)(16))
    assert type(made).__mro__[1] is new.ModelNew and made.derived


class Derived:
    @staticmethod
    def of(new: ModuleType) -> type[nn.Module]:
        class Also(new.ModelNew):
            derived = True

        return Also


def test_two_classes_of_one_text(scaled: ModuleType) -> None:
    """Classes that emit the same text have modules of their own, and one class has one."""

    class Twin(scaled.Scaled):
        ...

    x = torch.randn(5, 12)
    for kind in (scaled.Scaled, Twin):
        fusewright.optimize(kind(), [x], verify=False)  # from here on both are kept: what is known of a class says whether it was
    first, again, twin = (fusewright.optimize(kind(), [x], verify=False) for kind in (scaled.Scaled, scaled.Scaled, Twin))
    assert type(first) is type(again) is not type(twin)
    assert isinstance(twin, Twin) and not isinstance(first, Twin) and type(copy.deepcopy(twin)) is type(twin)
