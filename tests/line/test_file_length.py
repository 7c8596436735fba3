"""The emitted file stays one that a person is glad to read: few lines around the kernels, none of them dead, none too long."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.py.txt"))
EXAMPLES = ("conv2d_groupnorm_logsumexp", "conv3d_maxpool_logsumexp", "convtranspose2d_mean_logsumexp")
WIDTH = 140
FOR_THE_TOOL = {"ModelNew", "_KERNELS"}  # and for users
# At most so many lines. What a change makes shorter is written down here; what makes a file longer has to be worth it.
LINES = {
    # 340 lines are the kernel for a weight's gradient, where the library takes longer than all the rest of the step; in the first
    # 360 more a convolution that backward computes again.
    "conv2d_groupnorm_logsumexp": {"runtime": 144, "guards": 110, "tables": 17, "what runs": 119, "file": 2776},
    "conv3d_maxpool_logsumexp": {"runtime": 146, "guards": 110, "tables": 14, "what runs": 103, "file": 1833},
    "convtranspose2d_mean_logsumexp": {"runtime": 116, "guards": 110, "tables": 13, "what runs": 111, "file": 893},
}


@functools.cache
def emitted(name: str) -> str:
    return compile_problem(load_problem(ROOT / "examples" / f"{name}.py"), Options(target="host"))[2].text


def parts(text: str) -> dict[str, list[str]]:
    """The lines of each part, without blank ones at its ends. Parts begin with `# ---- name`."""
    found: dict[str, list[str]] = {"source": []}
    part = "source"
    for line in text.splitlines():
        if line.startswith("# ---- "):
            part = line.removeprefix("# ---- ").partition(":")[0]
            found[part] = []
        else:
            found[part].append(line)
    return {name: "\n".join(lines).strip("\n").split("\n") for name, lines in found.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_files_of_the_founding_models_stay_short(name: str) -> None:
    found = {part: len(lines) for part, lines in parts(emitted(name)).items()}
    found["file"] = len(emitted(name).splitlines())
    assert {part: found[part] for part in LINES[name] if found[part] > LINES[name][part]} == {}, f"longer than they were: {found}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_lines_of_python_are_not_too_long(name: str) -> None:
    found = parts(emitted(name))
    written = [line for part, lines in found.items() if part not in ("source", "kernels") for line in lines]
    assert [line for line in written if len(line) > WIDTH] == []


def texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in GOLDEN} | {name: emitted(name) for name in EXAMPLES}


def test_no_line_of_a_file_is_dead() -> None:
    """What the runtime defines is used, and so is every parameter and variable in it."""
    for name, text in texts().items():
        ours = ast.parse(text[text.index("# Below: written by Fusewright") :])
        defined = {node.name for node in ours.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        assigned = [target for node in ours.body if isinstance(node, ast.Assign) for target in node.targets]
        defined |= {node.id for target in assigned for node in ast.walk(target) if isinstance(node, ast.Name)}
        imports = [node for node in ours.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        imported = {alias.name.split(".")[0] for node in imports for alias in node.names}
        loaded = {node.id for node in ast.walk(ours) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        loaded |= {node.value.id for node in ast.walk(ours) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
        assert defined | imported, name
        assert (defined | imported) - loaded - FOR_THE_TOOL == set(), name
        classes = [node for node in ours.body if isinstance(node, ast.ClassDef)]
        methods = {node.name for one in classes for node in one.body if isinstance(node, ast.FunctionDef)}
        asked = {node.attr for node in ast.walk(ours) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
        stored = {node.attr for node in ast.walk(ours) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
        assert stored - asked - {"restype"} == set(), name  # (ctypes reads it)
        assert methods - asked - {"__init__", "__reduce__", "forward", "backward"} == set(), name


def test_locals_of_the_runtime_are_read() -> None:
    for name, text in texts().items():
        found = parts(text)
        unread = [one for part in ("runtime", "guards") for one in unused_locals("\n".join(found[part]))]
        assert unread == [], name


def test_gradients_are_called_by_what_they_are_of() -> None:
    """Of the first model: each gradient by the name of its parameter, in the order of what the region reads; its input has none."""
    functions = [node for node in ast.parse(emitted(EXAMPLES[0])).body if isinstance(node, ast.FunctionDef)]
    (gradient,) = [function for function in functions if function.name.endswith("_grad")]
    assert ast.unparse(gradient.body[-1]) == (
        "return (None, grad_conv_weight, grad_conv_bias, grad_group_norm_weight, grad_group_norm_bias)"
    )


def test_a_gradient_of_two_has_the_name_of_neither() -> None:
    """Of the third model: one sum is the gradient of both biases, and written twice; the copy is that of the second alone."""
    functions = [node for node in ast.parse(emitted(EXAMPLES[2])).body if isinstance(node, ast.FunctionDef)]
    (gradient,) = [function for function in functions if function.name.endswith("_grad")]
    weight, none, first, second = ast.unparse(gradient.body[-1]).removeprefix("return (").removesuffix(")").split(", ")
    assert (weight, none, second) == ("grad_conv_transpose_weight", "None", "grad_bias") and first not in ("grad_bias", "None")


def unused_locals(text: str) -> list[str]:
    """function.variable of each that a function assigns or is given, and never reads."""
    found: list[str] = []
    for function in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)):
        given = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        read = {node.id for node in names if not isinstance(node.ctx, ast.Store)}
        assigned = given | {node.id for node in names if isinstance(node.ctx, ast.Store)}
        found += [f"{function.name}.{name}" for name in sorted(assigned - read - {"_", "ctx", "self"})]
    return found
