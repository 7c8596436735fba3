"""What the documentation names exists: relative links, modules, and functions written as `package/module.py:name`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from structure.test_imports import ORDER

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fusewright"
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").rglob("*.md"))]

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"([\w./-]+\.(?:py|cuh|cpp|h))(?::([A-Za-z_]\w*))?(?![\w/])")
MEMBER = re.compile(r"(_?[A-Z]\w*)\.([a-z_]\w*)(?:\(.*\))?")
MADE = {"pictures/before.svg", "pictures/after.svg"}  # when the site is built, by docs/hooks.py
# Files of the reader, not ours.
EXAMPLES = {"MODEL.py", "NEW.py", "OUT.py", "CANDIDATE.py", "model.py", "model_new.py", "walk.py", "new.py", "yours.py"}


def named_files(page: Path) -> list[tuple[str, str]]:
    """(path, function or nothing) of each file that the page names in code between backticks, blocks of code left out."""
    text = FENCE.sub("", page.read_text())
    return [(match[1], match[2] or "") for code in CODE.findall(text) for match in FILE.finditer(code)]


def found(name: str) -> list[Path]:
    """The files that a name may mean: from the root, the package or the benchmarks, or the last parts of a path below it."""
    exact = [base / name for base in (ROOT, SOURCE, ROOT / "benchmarks") if (base / name).is_file()]
    return exact or [path for path in SOURCE.rglob(Path(name).name) if path.as_posix().endswith(f"/{name}")]


def headings(page: Path) -> set[str]:
    """As links name them: in lower case, words joined by hyphens."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def defined(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for link, heading in LINK.findall(FENCE.sub("", page.read_text())):
        target = page.parent / link if link else page
        made = link in MADE and page.parent == ROOT / "docs"
        if (not made and not target.exists()) or (heading and heading not in headings(target)):
            missing.append(f"{link}#{heading}" if heading else link)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_exist(page: Path) -> None:
    missing = [name for name, _ in named_files(page) if name not in EXAMPLES and not found(name)]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_functions_exist(page: Path) -> None:
    named = [(name, function) for name, function in named_files(page) if function]
    missing = [f"{name}:{function}" for name, function in named if not any(function in defined(path) for path in found(name))]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_members_exist(page: Path) -> None:
    """`Planner.want`: a file of ours defines the class and has that word."""
    named = [match for code in CODE.findall(FENCE.sub("", page.read_text())) if (match := MEMBER.fullmatch(code))]
    texts = [path.read_text() for path in SOURCE.rglob("*.py")]
    missing = [
        match[0]
        for match in named
        if not any(re.search(rf"^class {match[1]}\b", text, re.MULTILINE) and re.search(rf"\b{match[2]}\b", text) for text in texts)
    ]
    assert not missing


def test_packages_are_on_the_map_in_their_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE) == ORDER
    assert packages == set(ORDER)


def test_every_stage_is_linked() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    stages = sorted((ROOT / "docs" / "stages").glob("*.md"))
    assert stages and [path.name for path in stages if f"(stages/{path.name})" not in page] == []
