"""`fusewright cache`: what is kept, and that clearing it removes that and nothing else."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from fusewright.driver import cli
from fusewright.driver.commands import kept
from fusewright.driver.tuning.tune import cache_file as choices_file
from fusewright.options import cache_root
from fusewright.verify import library_arithmetic

SOURCE = Path(kept.__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two libraries and a choice in it, a link that leads out, and something that is not ours."""
    folder, builds = tmp_path / "cache", tmp_path / "extensions"
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(folder))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(builds))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("p" * 1000)
    for path, size in {"host/kernels-1.so": 3000, "host/headers-2/gch": 500, "choices/a.json": 40, "notes.txt": 7}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * size)
    (folder / "host" / "out").symlink_to(outside)
    (builds / "py311_cu130" / "fusewright_abc").mkdir(parents=True)
    (builds / "py311_cu130" / "fusewright_abc" / "main.so").write_bytes(b"x" * 200)
    (builds / "py311_cu130" / "theirs").mkdir()
    (builds / "py311_cu130" / "theirs" / "main.so").write_bytes(b"x" * 200)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli._main(["cache", *arguments])
    return status, *capsys.readouterr()


def test_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "list")
    assert (status, err) == (0, "") and out.startswith(str(root / "cache"))
    link = len(str(root / "outside"))
    lines = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert f"3 files   {(3500 + link) / 1000:.3g} kB" in lines["host"] and "newest just now" in lines["host"]
    assert "1 file      40 B" in lines["choices"] and "0 files       0 B" in lines["arithmetic"]
    assert "1 file     200 B" in lines["cuda"] and "not ours, and never removed: notes.txt" in out
    assert str(root / "cache" / "host") in run(capsys, "list", "host", "-v")[1]


def test_size(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "size", "choices", "--bytes") == (0, "40\n", "")
    assert run(capsys, "size", "choices", "cuda") == (0, "240 B\n", "")
    assert run(capsys, "size", "arithmetic") == (0, "0 B\n", "")


def test_clear_needs_a_yes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "clear")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"fusewright: this would remove 5 files, .* of host, choices, cuda; say --yes to do so.\n", err)
    assert (root / "cache" / "host" / "kernels-1.so").exists()


@pytest.mark.parametrize(("answer", "gone"), [("y", True), ("n", False), ("", False)])
def test_clear_asks_on_a_terminal(
    answer: str, gone: bool, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self, *_: Any) -> str:
            return f"{answer}\n" if answer else ""

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("builtins.input", lambda *_: answer if answer else (_ for _ in ()).throw(EOFError()))
    status, out, _ = run(capsys, "clear", "choices")
    assert status == 0 and ("freed 40 B" in out) == gone
    assert (root / "cache" / "choices" / "a.json").exists() != gone


def test_clear_removes_what_is_ours_and_nothing_else(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "clear", "--yes")
    assert (status, err) == (0, "") and out.startswith("removed 5 files, freed ")
    assert sorted(path.name for path in (root / "cache").iterdir()) == ["notes.txt"]
    assert (root / "outside" / "precious").read_text() == "p" * 1000
    assert [path.name for path in (root / "extensions" / "py311_cu130").iterdir()] == ["theirs"]
    assert run(capsys, "clear", "--yes") == (0, "nothing is kept\n", "")
    assert run(capsys, "clear", "--yes", "-q") == (0, "", "")


def test_clear_one_kind(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "clear", "choices", "--yes")[1] == "removed 1 file, freed 40 B\n"
    assert (root / "cache" / "host" / "kernels-1.so").exists()
    status, _, err = run(capsys, "clear", "hots", "--yes")
    assert (status, err) == (2, "fusewright: 'hots' is not kept here; there are host, choices, modules, arithmetic, cuda.\n")


def test_a_folder_that_is_a_link_is_left_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "cache" / "arithmetic").symlink_to(root / "outside")
    assert "left alone" in run(capsys, "list")[1]
    assert run(capsys, "clear", "--yes")[0] == 0
    assert (root / "outside" / "precious").exists() and (root / "cache" / "arithmetic").is_symlink()


def test_a_cache_that_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "file"))
    status, _, err = run(capsys, "list")
    assert status == 2 and "the cache folder is not a folder" in err
    monkeypatch.setenv("FUSEWRIGHT_CACHE", str(tmp_path / "none"))
    assert run(capsys, "size") == (0, "0 B\n", "") and not (tmp_path / "none").exists()


def test_every_folder_of_the_cache_is_listed(root: Path) -> None:
    """Whoever keeps something new there names it in kept.py, or it could never be cleared."""
    named = {match for path in SOURCE.rglob("*.py") for match in re.findall(r'cache_root\(\) / "(\w+)"', path.read_text())}
    assert {"choices", "arithmetic"} <= named <= set(kept.KINDS)
    assert choices_file("x").parent == cache_root() / "choices" and library_arithmetic.cache_root is cache_root
