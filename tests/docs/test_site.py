"""The documentation as a site: every page has its place, no link leaves it, its blocks of Python run, and it builds."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from docs.test_links import FENCE, LINK, MADE
from docs.tutorial import steps

from fusewright.driver import cli
from fusewright.driver.commands import health

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text()
PAGES = sorted(DOCS.rglob("*.md"))
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))


def ids(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """docs/hooks.py, which MkDocs loads in the same way."""
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_has_one_place_in_the_navigation() -> None:
    nav = SETTINGS.partition("\nnav:\n")[2]
    named = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    assert sorted(named) == sorted(map(ids, PAGES))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_link_leaves_the_site(page: Path) -> None:
    """Whoever reads the site has no repository beside it."""
    links = [link for link, _ in LINK.findall(FENCE.sub("", page.read_text())) if link]
    assert [link for link in links if not (page.parent / link).resolve().is_relative_to(DOCS)] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_included_files_exist(page: Path) -> None:
    assert all((ROOT / name).is_file() for name in re.findall(r'^--8<-- "([^"]+)"', page.read_text(), re.MULTILINE))


def test_the_reference_has_every_command(hooks: ModuleType) -> None:
    text = "\n".join(hooks.commands())
    names = re.findall(r"^#+ fusewright (.+)$", text, re.MULTILINE)
    assert names == "optimize,verify,explain,bench,report,suite,doctor,cache,cache list,cache size,cache clear".split(",")
    assert "| `--target` | Where the kernels run" in text and "One of `auto`, `cuda`, `host`. Default: `auto`." in text
    page = hooks.on_page_markdown((DOCS / "reference" / "commands.md").read_text())
    assert "<!--" not in page and "## fusewright optimize" in page


def test_excerpts_are_of_the_file_as_it_is_written(hooks: ModuleType) -> None:
    page = hooks.on_page_markdown((DOCS / "reading-the-file.md").read_text())
    assert "<!--" not in page
    for part in ("def forward(self, x):", "def _planned_for(", "_launch(", "aten.softmax", "__global__", "// layer_norm_gelu_softmax_fwd"):
        assert part in page


@pytest.mark.slow
def test_pictures(hooks: ModuleType) -> None:
    found = hooks.pictures()
    assert {f"pictures/{name}.svg" for name in found} == MADE
    for svg in found.values():
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "conv_transpose2d" in found["before"] and "conv_transpose2d" not in found["after"] and "sum_fwd" in found["after"]


def test_names_of_blocks_are_for_us_alone(hooks: ModuleType) -> None:
    assert hooks.on_page_markdown("```python operator\nx\n```\n") == "```python\nx\n```\n"
    assert hooks.on_page_markdown('```python title="a.py"\nx\n```\n') == '```python title="a.py"\nx\n```\n'


@pytest.mark.parametrize("page", HOW_TO, ids=ids)
def test_commands_are_spelt_right(page: Path) -> None:
    """Each line `fusewright …` of a block names a command and options that there are."""
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split("#")[0].split() for block in blocks for line in block.splitlines() if line.startswith("fusewright")]
    group = cli.typer.main.get_command(cli.app)
    for _, *words in lines:
        command, at = group, 0
        while at < len(words) and hasattr(command, "commands") and words[at] in command.commands:
            command, at = command.commands[words[at]], at + 1
        known = {option for one in command.params for option in [*one.opts, *getattr(one, "secondary_opts", [])]}
        known |= {"--install-completion", "--show-completion", "--help"}
        assert not hasattr(command, "commands") or words[at].startswith("-"), words
        assert {word for word in words if word.startswith("-")} <= known, words


def test_python_of_the_how_to_pages_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one folder, with the tutorial's file in it. A block with a title is a model file."""
    monkeypatch.chdir(tmp_path)
    (model,) = (step.text for step in steps() if step.file == "model.py")
    Path("model.py").write_text(model)
    assert cli._main(["optimize", "model.py", "--quick", "--forward-only", "--target", "host", "-q", "--json", "run.json"]) == 0
    ran = 0
    for page in HOW_TO:
        for title, body in re.findall(r'^```python(?: title="([^"]+)")?\n(.*?)^```', page.read_text(), re.MULTILINE | re.DOTALL):
            ran += 1
            if title:
                Path(title).write_text(body)
                assert cli._main(["explain", title, "--target", "host"]) == 0, capsys.readouterr().err
            else:
                exec(compile(body, f"{page.name}", "exec", dont_inherit=True), {"__name__": "how_to"})
    assert ran >= 3


def test_the_doctor_on_the_pages_is_the_doctor() -> None:
    shown = [line for step in steps() if step.command == "fusewright doctor" for line in step.shows[:-1]]
    assert shown and {line.split()[0] for line in shown} <= {health.WELL, health.NOTE}


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: make docs")
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "python.html").read_text()
    assert "fusewright.optimize" in page and "fusewright.load" in page
