"""Text of kernels is made last and read by no one: where it is written, nothing looks for patterns or pieces in strings."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fusewright

SOURCE = Path(fusewright.__file__).parent
COVERED = sorted(str(path.relative_to(SOURCE)) for path in (SOURCE / "codegen").rglob("*.py"))
COVERED += [f"schedule/{name}.py" for name in "attention_fusion conv_fusion conv_stored fusion product_fusion".split()]
COVERED += [f"ir/{name}.py" for name in "access expr extent functions index stmt".split()] + ["emit/numbers.py"]
READS = {  # methods of strings that read what is in them, or change it by what it is
    "startswith", "endswith", "removeprefix", "removesuffix", "replace", "split", "rsplit", "splitlines", "partition", "rpartition",
    "find", "rfind", "index", "count", "isidentifier", "isdigit", "translate",
}  # fmt: skip
# A number's digits are looked at as they are written; lines are broken by their length, never inside an item.
ALLOWED = {("ir/expr.py", "any((mark in text for mark in '.e'))")}
# Sections of our own headers are told apart when they are loaded.
ALLOWED |= {("codegen/mma/conv.py", call) for call in (
    "f'\\n{(HERE / file).read_text().rstrip()}'.split(SECTION)", "piece.split('\\n', 1)",
)}  # fmt: skip
# Fixed text of templates is moved to the right, directives stay at the margin; lines that a placeholder left empty are dropped.
ALLOWED |= {("codegen/mma/conv_epilogue.py", call) for call in ("text.splitlines()", "line.lstrip().startswith('#')")}
ALLOWED |= {("codegen/mma/conv_text.py", "source.splitlines()")}


def found_in(path: str, source: str) -> list[str]:
    tree = ast.parse(source)
    tested = {node for call in ast.walk(tree) if isinstance(call, ast.Call) for node in [call] if is_allowed(path, call)}
    inside = {node for call in tested for node in ast.walk(call)}
    return [f"{path}:{node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if node not in inside and reads_text(node)]


def is_allowed(path: str, node: ast.AST) -> bool:
    return (path, ast.unparse(node)) in ALLOWED


def reads_text(node: ast.AST) -> bool:
    """A regular expression, a method that reads a string, a substring test."""
    match node:
        case ast.Import(names=names):
            return any(alias.name == "re" for alias in names)
        case ast.ImportFrom(module="re"):
            return True
        case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in READS:
            return not constant_text(value) and not is_of_names(node)
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[of]):
            return isinstance(left, ast.JoinedStr) or is_line(of) or (isinstance(left, ast.Constant) and is_text(left, of))
    return False


def constant_text(value: ast.expr) -> bool:
    """A string that stands in the program, as a list of words does."""
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def is_of_names(node: ast.AST) -> bool:
    """`list.index` and `tuple.count` of what is no text, and `split` of coordinates: with an argument that is no string."""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    texts = [arg for arg in node.args if isinstance(arg, ast.JoinedStr) or constant_text(arg)]
    return node.func.attr in ("index", "count", "split", "find") and bool(node.args) and not texts


def is_line(of: ast.expr) -> bool:
    return isinstance(of, ast.Name) and of.id in ("line", "text", "source", "code")


def is_text(left: ast.Constant, of: ast.expr) -> bool:
    """A piece of text, longer than a word, looked for in something."""
    return isinstance(left.value, str) and not left.value.isidentifier() and not isinstance(of, (ast.Tuple, ast.Set, ast.List))


@pytest.mark.parametrize("path", COVERED)
def test_modules_that_write_kernels_read_no_text(path: str) -> None:
    assert not found_in(path, (SOURCE / path).read_text())


@pytest.mark.parametrize(
    "code",
    [
        "import re",
        "from re import sub",
        "line.startswith('const ')",
        "body.replace('STEPS', 'MORE')",
        "any('holds(' in line for line in lines)",
        "any(f'{name}[' in text for text in found)",
        "'__global__' in source",
        "source.count('__global__')",
        "name.removesuffix('_ptr')",
        "line.split()[2]",
        "text.isidentifier()",
        "x in line",
    ],
)
def test_what_it_finds(code: str) -> None:
    assert found_in("kernels/some.py", code)


@pytest.mark.parametrize(
    "code", ["'a b'.split()", "order.index(dim)", "remainder.split(by)", "name in names", "'step' in found", "replace(row, name='x')"]
)
def test_what_it_leaves_alone(code: str) -> None:
    assert not found_in("kernels/some.py", code)
