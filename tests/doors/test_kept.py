"""Optimised modules that outlive a call: written as a file, kept by content, found again in another process; and what is said of them."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from doors.models import Held, Reporting, Result, Scaled, executed, local, quickly, same
from doors.watch import kernels_of, launches
from torch import Tensor, nn

import fusewright
from fusewright.driver import content, module
from fusewright.options import Options
from fusewright.process import with_this_package

# ---- the file ----

NET = '''
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width, extra=None):
        super().__init__()
        self.width = width
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return torch.softmax(torch.tanh(self.norm(x)) * 2, -1)
'''


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "door_net.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "door_net", raising=False)
    import door_net  # type: ignore[import-not-found]

    return door_net.Net


def test_saved_as_a_file(net: Any, tmp_path: Path) -> None:
    before = set(sys.modules)
    new, x = quickly(net(12), torch.randn(5, 12)), torch.randn(7, 12)
    new.save(tmp_path / "net_new.py")
    assert {name for name in set(sys.modules) - before if "fusewright_" in name} == set()
    file = fusewright.load(tmp_path / "net_new.py")
    model = file.ModelNew(*file.get_init_inputs())
    model.load_state_dict(new.state_dict())
    same(model(x), new(x))
    assert file.get_init_inputs() == [12] and file.get_inputs()[0].shape == (5, 12)
    new.width = 3
    with pytest.raises(fusewright.Refused, match=r"Net: built with 3, it differs in norm.weight; pass arguments=\[...\]"):
        new.save(tmp_path / "other.py")
    with pytest.raises(fusewright.Refused, match="Net: built with 12, it differs in width"):
        new.save(tmp_path / "other.py", arguments=[12])
    del new.width
    with pytest.raises(fusewright.Refused, match="what width was when it was built is not known"):
        new.save(tmp_path / "other.py")
    assert not (tmp_path / "other.py").exists()


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (lambda: nn.Sequential(nn.LayerNorm(6), nn.Tanh()), lambda: torch.randn(4, 6), "its class is one of an installed package"),
        (lambda: local()(), lambda: torch.randn(4, 6), "its class stands inside local.<locals>"),
        (Held, lambda: Result(torch.randn(4, 6), 3), "called with tensors and plain values by position"),
        (lambda: executed()(), lambda: torch.randn(4, 6), "the source of its class cannot be had"),
    ],
)
def test_what_has_no_file(model: Any, inputs: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(fusewright.Refused, match=words):
        quickly(model(), inputs()).save(tmp_path / "new.py")


# ---- content ----


def key(model: nn.Module, x: Tensor, **options: Any) -> str | None:
    return content.key_of(model, type(model), "call", [x], Options(target="host", **options))


def test_what_makes_another_key() -> None:
    x, wide = torch.randn(5, 12), Scaled()
    usual = key(wide, x)
    with torch.no_grad():
        wide.norm.weight.fill_(7.0)
    assert usual is not None and key(wide, torch.zeros(5, 12)) == usual == key(Scaled(), x)
    wide.width = 13
    frozen, hooked, evaluated, tied = (Scaled() for _ in range(4))
    frozen.norm.weight.requires_grad_(False)
    hooked.norm.register_forward_hook(lambda *given: None)
    tied.norm.bias = tied.norm.weight
    others = [key(model, x) for model in (wide, frozen, hooked, evaluated.eval(), tied)]
    others += [key(Scaled(), x[:3]), key(Scaled(), x.double())]
    others += [key(Scaled(), x, verify=False), key(Reporting(), x), key(local(2.0)(), x), key(local(3.0)(), x), key(Scaled().double(), x)]
    assert None not in others and len({usual, *others}) == 1 + len(others)
    wide.width = threading.Lock()  # nothing is known of it
    assert key(wide, x) is None


def test_a_plan_is_not_taken_for_another_global(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that forward reads is in no key: the plan itself says that it does not fit."""
    x = torch.randn(5, 12)
    same(quickly(Globally(), x)(x), torch.tanh(x) * 2 + 1)
    assert quickly(Globally(), x).report["cached"]
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    new = quickly(Globally(), x)
    with launches(new) as launched:
        same(new(x), torch.tanh(x) * 5 + 1)
    assert launched and not new.report["cached"]


FACTOR = 2.0


class Globally(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * FACTOR + 1


PROCESS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import door_net, fusewright

model, x = door_net.Net(12), torch.randn(5, 12)
new = fusewright.optimize(model, x, target="host", verify=False)
saved, given, expected = torch.load(sys.argv[2], weights_only=False)
launched = []
for space in {fusewright.about(made).spaces["training"] for made in (new, saved)}:
    space._launch = lambda kernel, *arguments, launch=space._launch: launched.append(kernel) or launch(kernel, *arguments)
assert torch.allclose(new(x), model(x), atol=1e-6) and torch.equal(saved(given), expected)
planned = [name for name in ("sympy", "fusewright.driver.pipeline", "torch._dynamo") if name in sys.modules]
print(new.report["cached"], planned, len(launched))
"""


def test_in_another_process(net: Any, own_cache: Path, tmp_path: Path) -> None:
    """It takes the plan from the cache and imports nothing that plans; and it loads what was saved whole."""
    new, x = quickly(net(12), torch.randn(5, 12)), torch.randn(3, 12)
    torch.save((new, x, new(x)), tmp_path / "saved")
    usual = Path(os.environ.get("FUSEWRIGHT_CACHE") or Path.home() / ".cache" / "fusewright")
    (own_cache / "host").symlink_to(usual / "host")
    environment = with_this_package(os.environ | {"FUSEWRIGHT_CACHE": str(own_cache)})
    command = [sys.executable, "-c", PROCESS, str(tmp_path), str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"True [] {2 * len(kernels_of(new))}"


# ---- what it says of itself ----


def test_the_examples_of_the_docstring() -> None:
    (example,) = (e for e in doctest.DocTestFinder().find(module.optimize, "optimize", globs={}) if e.examples)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted == 8 and result.failed == 0


def test_it_is_typed() -> None:
    root = Path(fusewright.__file__).parent
    assert (root / "py.typed").exists()
    packaged = (root.parents[1] / "pyproject.toml").read_text()
    assert '"py.typed"' in packaged
