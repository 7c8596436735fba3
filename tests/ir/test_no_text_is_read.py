"""Text of kernels is made last and read by no one: where it is written, chosen, built and run, nothing looks for patterns or pieces in
strings. What is read all the same is listed, with what it is; none of it is CUDA that we wrote."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fusewright

SOURCE = Path(fusewright.__file__).parent
WHOLE = ("autograd", "codegen", "driver", "emit", "host", "target")
COVERED = sorted(str(path.relative_to(SOURCE)) for package in WHOLE for path in (SOURCE / package).rglob("*.py"))
COVERED += [f"schedule/{name}.py" for name in "attention_fusion conv_fusion conv_stored fusion product_fusion".split()]
COVERED += [f"ir/{name}.py" for name in "access cpp expr extent functions index stmt".split()]
# CUDA of any candidate becomes C++ that g++ takes: a translator, which reads its source, whoever wrote it.
COVERED.remove("host/transform.py")
READS = {  # methods of strings that read what is in them, or change it by what it is
    "startswith", "endswith", "removeprefix", "removesuffix", "replace", "split", "rsplit", "splitlines", "partition", "rpartition",
    "find", "rfind", "index", "count", "isidentifier", "isdigit", "translate",
}  # fmt: skip
ALLOWED = {
    "a number's digits, as they are written": {"ir/cpp.py": ["any((mark in text for mark in '.e'))"]},
    "sections of our own headers, when they are loaded: written by hand": {
        "codegen/mma/code.py": [
            "f'\\n{(HERE / file).read_text().rstrip()}'.split(PIECE)", "piece.split('\\n', 1)", "head.partition(CALLS)", "words.split()",
        ],
        "target/helpers.py": [
            "f'\\n{(Path(__file__).parent / file).read_text()}'.split(f'\\n{SECTION}')", "whole.partition('\\n')",
            "head.removeprefix(SECTION).split()", "text.partition('#ifdef CUDA_ON_CPU\\n')", "rest.partition('#else\\n')",
            "rest.rpartition('#endif')", "rest.partition('\\n')", "line.startswith('//')", "before.splitlines()",
        ],
    },
    "lines of pieces that are moved to the right, directives but for the margin; lines that a placeholder left empty": {
        "codegen/mma/code.py": ["text.splitlines()", "line.lstrip().startswith('#')"],
        "codegen/mma/conv_text.py": ["source.splitlines()"],
    },
    "characters that no string of Python and no comment may hold, as they are written": {
        "emit/kernels.py": [
            "text.translate(ASCII)",
            "plain.replace('??', '? ?').replace(\"'''\", '\"\"\"')", "ascii_only(cuda).replace('\\\\', '\\\\\\\\')",
        ],
    },
    "paths and names of the model, of its classes and nodes, of operators": {
        "autograd/gradients.py": ["f'grad_{name}' not in graph.index"],
        "autograd/trace.py": ["fx.target._schema.name.removeprefix('aten::').removesuffix('_')"],
        "emit/assumptions.py": ["methods.qualname.split('.')"],
        "emit/forward.py": ["path.rpartition('.')"],
        "emit/here.py": ["kind.__qualname__.split('.')"],
        "emit/kernels.py": ["name.startswith(f'{node}_')"],
        "emit/surroundings.py": ["name.startswith('__')"],
        "emit/values.py": ["str(node.args[0]).split('.')", "str(node.args[0]).rpartition('.')", "path.rpartition('.')"],
        "driver/content.py": ["cls.__module__.partition('.')", "name.partition('.')"],
        "driver/saving.py": ["'.' in kind.__qualname__", "kind.__qualname__.rpartition('.')"],
    },
    "paths and names of files": {
        "emit/surroundings.py": [
            "'/' in self.original", "os.path.relpath(problem.path, place.absolute().parent).replace(os.sep, '/')",
            "around.original.rpartition('/')",
        ],
        "host/compile.py": ["_name('headers', sanitize, *headers, *flags).removesuffix('.so')"],
        "host/library.py": ["f'-{sanitize}-' in path.name"],
        "driver/optimized.py": ["frame.f_code.co_filename.startswith(OURS)"],
        "driver/planning.py": ["name.startswith((FILES, CANDIDATES))"],
        "driver/suite.py": ["path.name.startswith(('.', '_'))", "name.removesuffix('.py')"],
    },
    "what compilers, sanitizers, the host's runtime and other programs print": {
        "driver/cli.py": ["message.endswith('?')"],
        "driver/operators.py": ["'input mutations' in str(error)"],
        "host/compile.py": ["import re", "'No space left on device' in output", "'Killed signal' in output",
                            "'Free Software Foundation' in _version(found)"],
        "host/library.py": ["import re", "text.decode().splitlines()"],
        "host/sanitize.py": ["import re"],
        "driver/commands/again.py": ["run.stdout.endswith(f'{last_word}\\n')"],
        "driver/commands/health.py": [
            "errors.read_text(errors='replace').strip().splitlines()",
            "_says([str(compiler), '--version']).splitlines()", "'release' in line",
            "said[0].partition('release ')[2].split(',')", "said.splitlines()",
        ],
        "driver/pipeline.py": ["'<long long' in name"],
        "driver/suite.py": ["'out of memory' in result.why.lower()", "text.splitlines()", "line.startswith(' ')", "errors.splitlines()",
                            "'fusewright: ' in errors", "line.startswith('fusewright: ')", "sentence.removeprefix('fusewright: ')",
                            "line.partition('(UUID: ')"],
    },
    "messages of errors": {
        "driver/commands/app.py": ["'temporary directory' in str(error)", "sentence.split()", "line.endswith(('.', '!', '?'))",
                                   "str(error).splitlines()"],
        "driver/pipeline.py": ["str(error).splitlines()"],
        "driver/tuning/tune.py": ["str(error).splitlines()"],
    },
    "names of GPUs and of types, versions": {
        "target/detect.py": ["import re"],
        "driver/tuning_record.py": ["import re"],
        "driver/plans.py": ["str(self.dtype).removeprefix('torch.')"],
        "driver/commands/health.py": ["sys.version.split()", "release.split('.')", "theirs.split('.')",
                                      "torch.__version__.split('+')[0].split('.')"],
    },
    "what a user types": {
        "driver/commands/arguments.py": ["text.split(',')"],
        "driver/suite.py": ["wanted.split(',')", "'-1' in names", "names.index('-1')"],
    },
    "lines of any candidate, shown where g++ finds a mistake in them": {"host/errors.py": ["source.splitlines()"]},
    "how a file asks for a kernel that saves activations: by its name and one more word": {"host/library.py": ["kernel.partition(' ')"]},
    "an order of threads, in a list of names": {"host/library.py": ["ORDERS.index('warps')"]},
    "the head of a saved model: a word and a hash": {"driver/saving.py": ["line.partition(' ')"]},
}  # fmt: skip
EXCEPTIONS = {(path, code) for files in ALLOWED.values() for path, listed in files.items() for code in listed}


def found_in(path: str, source: str) -> list[str]:
    tree = ast.parse(source)
    inside = {node for one in ast.walk(tree) if is_allowed(path, one) for node in ast.walk(one)}
    return [f"{path}:{node.lineno}: {ast.unparse(node)}" for node in ast.walk(tree) if node not in inside and reads_text(node)]


def is_allowed(path: str, node: ast.AST) -> bool:
    return isinstance(node, (ast.Call, ast.Compare, ast.Import)) and (path, ast.unparse(node)) in EXCEPTIONS


def reads_text(node: ast.AST) -> bool:
    """A regular expression, a method that reads a string, a substring test."""
    match node:
        case ast.Import(names=names):
            return any(alias.name == "re" for alias in names)
        case ast.ImportFrom(module="re"):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"))):
            return False
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


def test_every_exception_is_one() -> None:
    """What is gone from the program is gone from the list."""
    found = {path: {ast.unparse(node) for node in ast.walk(ast.parse((SOURCE / path).read_text())) if hasattr(node, "lineno")}
             for path, _ in EXCEPTIONS}  # fmt: skip
    assert not [(path, code) for path, code in EXCEPTIONS if code not in found[path]]


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
