"""A model file becomes a Problem, or one sentence that says where and why not."""

from __future__ import annotations

import copy
import pickle
import random
import re
import sys
from collections import namedtuple
from pathlib import Path

import numpy
import pytest
import torch
from bad_models import BAD, GOOD, changed
from torch import nn

from fusewright.errors import Refused, Unsupported
from fusewright.frontend.problem import Problem, check_output, load_problem
from fusewright.options import Options


def write(folder: Path, source: str | bytes, name: str = "model.py") -> Path:
    path = folder / name
    path.write_bytes(source.encode() if isinstance(source, str) else source)
    return path


def refusal(path: Path) -> str:
    before = set(sys.modules)
    with pytest.raises(Refused) as caught:
        load_problem(path)
    assert not [name for name in set(sys.modules) - before if "fusewright_model" in name], "a refused file stays loaded"
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


# ---- what holds of a good file ----


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.joinpath("models").glob("*.py")), ids=lambda p: p.stem)
def test_every_small_model_loads_and_runs(path: Path) -> None:
    problem = load_problem(path)
    check_output(problem.model()(*problem.inputs()), path)


FOUNDING = {
    "conv2d_groupnorm_logsumexp": (
        [(128, 8, 128, 128)],
        {
            "conv.weight": (64, 8, 3, 3),
            "conv.bias": (64,),
            "group_norm.weight": (64,),
            "group_norm.bias": (64,),
        },
    ),
    "conv3d_maxpool_logsumexp": (
        [(4, 32, 32, 128, 128)],
        {"conv.weight": (64, 32, 3, 3, 3), "conv.bias": (64,)},
    ),
    "convtranspose2d_mean_logsumexp": (
        [(16, 64, 512, 512)],
        {"bias": (128, 1, 1), "conv_transpose.weight": (64, 128, 3, 3), "conv_transpose.bias": (128,)},
    ),
}


@pytest.mark.parametrize("name", FOUNDING)
def test_the_founding_models_are_as_described(name: str, examples: Path) -> None:
    problem = load_problem(examples / f"{name}.py")
    inputs, state = FOUNDING[name]
    values = problem.inputs()
    assert [tuple(value.shape) for value in values] == inputs
    assert all(value.min() >= 0 and value.max() < 1 for value in values)
    assert {key: tuple(value.shape) for key, value in problem.model().state_dict().items()} == state


def test_path_is_absolute_and_names_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    problem = load_problem(Path("model.py"))
    assert problem.path == tmp_path / "model.py"
    assert problem.namespace.get_inputs.__code__.co_filename == str(problem.path)
    assert problem.source == GOOD


def test_the_same_seed_gives_the_same_model_and_inputs(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path, GOOD))
    torch.testing.assert_close(problem.inputs(5), problem.inputs(5), rtol=0, atol=0)
    torch.testing.assert_close(problem.model(5).state_dict(), problem.model(5).state_dict(), rtol=0, atol=0)
    assert not torch.equal(problem.inputs(5)[0], problem.inputs(6)[0])
    assert not torch.equal(problem.model(5).w, problem.model(6).w)


def test_the_model_is_what_manual_seed_gives(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path, GOOD))
    torch.manual_seed(9)
    assert torch.equal(problem.namespace.Model(3).w, problem.model(9).w)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(2, 3), problem.inputs(9)[0])


def test_random_states_are_left_as_they_were(tmp_path: Path) -> None:
    source = "import random, numpy, torch\ntorch.manual_seed(1); random.seed(1); numpy.random.seed(1)\n" + GOOD
    source += "get_inputs = lambda: [torch.rand(2, 3) + random.random() + numpy.random.rand()]\n"
    path = write(tmp_path, source)
    states = torch.get_rng_state(), random.getstate(), str(numpy.random.get_state())
    problem = load_problem(path)
    first = problem.inputs(3)
    random.random()
    torch.testing.assert_close(first, problem.inputs(3), rtol=0, atol=0)
    problem.model(3)
    random.setstate(states[1])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(numpy.random.get_state()) == states[2]


def test_models_pickle_and_copy(tmp_path: Path) -> None:
    model = load_problem(write(tmp_path, GOOD)).model()
    assert torch.equal(pickle.loads(pickle.dumps(model)).w, model.w)
    assert torch.equal(copy.deepcopy(model).w, model.w)


def test_a_file_that_reads_arguments_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fusewright", "optimize", "--quick"])
    source = "import argparse, sys\nSIZE = argparse.ArgumentParser().parse_args()\nARGV = list(sys.argv)\n"
    arguments = load_problem(write(tmp_path, source + GOOD)).namespace.ARGV
    assert arguments == [str(tmp_path / "model.py")]
    assert sys.argv == ["fusewright", "optimize", "--quick"]


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = load_problem(write(tmp_path, GOOD))
    two = load_problem(write(tmp_path / "other", changed("2, 3", "4, 3")))
    assert one.namespace.__name__ != two.namespace.__name__
    assert [one.inputs()[0].shape[0], two.inputs()[0].shape[0]] == [2, 4]


def test_a_file_may_import_from_its_folder(tmp_path: Path) -> None:
    write(tmp_path, "n = 3\n", "sibling_of_the_model.py")
    source = changed("return [torch.rand(2, 3)]", "from sibling_of_the_model import n; return [torch.rand(2, n)]")
    path = list(sys.path)
    try:
        assert load_problem(write(tmp_path, source)).inputs()[0].shape == (2, 3)
    finally:
        sys.modules.pop("sibling_of_the_model", None)
    assert sys.path == path


def test_dataclasses_and_main_guard(tmp_path: Path) -> None:
    source = f"""\
from __future__ import annotations
import dataclasses
{GOOD}
@dataclasses.dataclass
class Config:
    n: int = 3
if __name__ == "__main__":
    raise SystemExit(5)
"""
    assert isinstance(load_problem(write(tmp_path, source)), Problem)


def test_plain_values_and_tuples_of_them_are_inputs(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path, changed("[torch.rand(2, 3)]", "(torch.rand(2, 3), 2, 0.5, True, None, 'sum', (4, [5]))")))
    assert problem.inputs()[1:] == [2, 0.5, True, None, "sum", (4, [5])]


def test_inputs_that_carry_a_gradient_are_detached(tmp_path: Path) -> None:
    problem = load_problem(write(tmp_path, changed("rand(2, 3)", "rand(2, 3, requires_grad=True) * 2")))
    assert problem.inputs()[0].is_leaf and not problem.inputs()[0].requires_grad


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_declared_encodings(tmp_path: Path, encoding: str) -> None:
    declared = f"# -*- coding: {encoding} -*-\n# é\n" if encoding == "latin-1" else "# é\n"
    load_problem(write(tmp_path, (declared + GOOD).encode(encoding)))


# ---- what is refused ----


@pytest.mark.parametrize("kind", BAD)
def test_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = BAD[kind]
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    sentence = refusal(write(tmp_path, bad.source))
    assert re.match(r"model\.py(:\d+)?: ", sentence), sentence
    assert re.search(bad.says, sentence), sentence
    assert sys.path == path


def test_no_such_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone.py").endswith("gone.py: no such file")
    assert refusal(tmp_path / "no" / "gone.py").endswith("gone.py: no such file")


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith(": a directory, not a model file")


def test_a_file_in_place_of_a_folder(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, GOOD) / "model.py").endswith("cannot be read: Not a directory")


def test_a_later_call_that_fails_is_refused_too(tmp_path: Path) -> None:
    source = GOOD + "values = [[], [torch.rand(2, 3)]]\nget_inputs = lambda: values.pop()\n"
    problem = load_problem(write(tmp_path, source))
    assert problem.inputs()[0].shape == (2, 3)  # those that were checked
    with pytest.raises(Refused, match="returned no tensor"):
        problem.inputs()


def test_long_messages_are_cut(tmp_path: Path) -> None:
    assert len(refusal(write(tmp_path, "raise ValueError('x' * 5000 + '\\n second line')"))) < 400


def test_ctrl_c_is_not_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load_problem(write(tmp_path, "raise KeyboardInterrupt\n"))


# ---- outputs and options ----

Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "output",
    [torch.ones(1), [torch.ones(1)], (1, torch.ones(1)), {"y": [torch.ones(1)]}, Pair(None, torch.ones(1))],
    ids=["tensor", "list", "tuple", "dict", "namedtuple"],
)
def test_outputs_that_hold_a_tensor(output: object) -> None:
    check_output(output, Path("model.py"))


@pytest.mark.parametrize(
    ("output", "kind"),
    [(None, "None"), (1.0, "a float"), ([], "a list"), ({"y": 1}, "a dict"), (nn.Module, "the class Module")],
)
def test_outputs_that_do_not(output: object, kind: str) -> None:
    with pytest.raises(Refused, match=rf"model\.py: Model\.forward\(\) returned {kind}, which holds no tensor"):
        check_output(output, Path("model.py"))


@pytest.mark.parametrize(
    "wrong", [{"target": "gpu"}, {"sanitize": "memory"}, {"target": "cuda", "sanitize": "thread"}, {"seeds": 0}]
)
def test_options_that_make_no_sense(wrong: dict) -> None:
    with pytest.raises(Refused):
        Options(**wrong)


def test_unsupported_is_a_refusal() -> None:
    assert issubclass(Unsupported, Refused)
