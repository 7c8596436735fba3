"""What the site has beyond its pages: the commands' reference and the pictures, made when it is built."""

from __future__ import annotations

import ast
import importlib
import re
import tempfile
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from fusewright.driver.cli import app
from fusewright.driver.pipeline import compile_problem
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.report.code import cuda_source, sections
from fusewright.report.graph import after_picture, before_picture, drawn
from fusewright.report.record import run_record
from fusewright.report.style import STYLE
from fusewright.words import shown_amount

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "convtranspose2d_mean_logsumexp.py"  # the model of the pictures
COMMANDS = "<!-- the commands -->"
EXCERPT = re.compile(r"<!-- excerpt: (\w+) -->")
NAMED_FENCE = re.compile(r"^(```\w+) (?!title=).*$", re.MULTILINE)  # ```python operator: a name that our tests look for


# ---- called by MkDocs ----


def on_files(files: Any, config: Any) -> Any:
    generated = importlib.import_module("mkdocs.structure.files").File.generated
    for name, svg in pictures().items():
        files.append(generated(config, f"pictures/{name}.svg", content=svg))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, "\n".join(commands()))
    if EXCERPT.search(markdown):
        found = excerpts()
        markdown = EXCERPT.sub(lambda match: found[match[1]], markdown)
    return NAMED_FENCE.sub(r"\1", markdown)


# ---- the commands ----


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as its --help has them."""
    yield from _commands(typer.main.get_command(app), "fusewright", 2)


def _commands(group: Any, path: str, level: int) -> Iterator[str]:
    for name, command in group.commands.items():
        whole = f"{path} {name}"
        yield f"\n{'#' * level} {whole}\n"
        yield re.sub(r"\n +", "\n", command.help or "")
        if hasattr(command, "commands"):
            yield from _commands(command, whole, level + 1)
            continue
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
        words = [one.metavar or one.name for one in arguments]
        yield f"\n```sh\n{' '.join([whole, *words, '[OPTIONS]'])}\n```\n\n| | |\n| --- | --- |"
        for one, word in zip(arguments, words, strict=True):
            yield f"| `{word}` | {_cell(one.help)} |"
        for one in options:
            names = ", ".join(f"`{opt}`" for opt in [*one.opts, *one.secondary_opts])
            yield f"| {names} | {_cell(one.help)}{_default(one)} |"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


def _default(option: Any) -> str:
    value = getattr(option.default, "value", option.default)
    shown = value not in (None, False, True, "") and not callable(value)
    choices = ", ".join(f"`{one.value}`" for one in type(option.default)) if isinstance(option.default, Enum) else ""
    return (f" One of {choices}." if choices else "") + (f" Default: `{value}`." if shown else "")


# ---- the pictures ----


def pictures() -> dict[str, str]:
    """The graph of the example as PyTorch runs it, and as Fusewright does."""
    plan, emitted, problem = compiled(EXAMPLE)
    found = run_record(problem, plan, emitted, before=plan.captured)
    facts = {kernel["name"]: kernel for kernel in found["kernels"]}

    def written(node: Any) -> str:
        size = shown_amount(node.get("bytes"), "B")
        return size if node["leaf"] else f"writes {size}" if size else ""

    def moved(name: str) -> str:
        return shown_amount(facts[name]["bytes"], "B")

    before = drawn(before_picture(found["before"], written), "The graph as PyTorch runs it")
    after = drawn(after_picture(found["graph"], found["steps"], written, moved), "The graph as Fusewright runs it")
    return {"before": alone(before), "after": alone(after)}


# ---- a file as it is written today ----


def excerpts() -> dict[str, str]:
    """Parts of the file that is written for the tutorial's model, as blocks of code."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    model = re.search(r'^```python title="model.py"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    assert model is not None, "the tutorial has no model.py"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(model[1], encoding="utf-8")
        emitted = compiled(path)[1]
    functions = functions_of(emitted.text)
    kernel = emitted.kernels[0].name
    cuda = next(section.text for section in sections(cuda_source(emitted.text), [kernel]) if section.name == kernel)
    region = next(name for name, text in functions.items() if f'_launch("{kernel}"' in text)
    python = {
        "forward": functions["ModelNew.forward"],
        "planned": functions["_planned_for"],
        "region": functions[region],
        "reference": functions[f"{region}_reference"],
    }
    blocks = {name: f"```python\n{text.rstrip()}\n```" for name, text in python.items()}
    return blocks | {"kernel": f"```cuda\n{cuda.strip()}\n```"}


def functions_of(text: str) -> dict[str, str]:
    """The functions of a module, and those of its classes as `Class.function`."""
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        before = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for one in members:
            if isinstance(one, ast.FunctionDef):
                found[before + one.name] = textwrap.dedent(ast.get_source_segment(text, one, padded=True) or "")
    return found


def compiled(path: Path) -> tuple[Any, Any, Any]:
    """(plan, what was emitted, problem) of a model file; nothing is built."""
    problem = load_problem(path)
    _, plan, emitted = compile_problem(problem, Options(target="host", arch="H200"))
    return plan, emitted, problem


def alone(svg: str) -> str:
    """A picture of the report as a file of its own."""
    head, _, rest = svg.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{rest}'
