"""The tutorial does what it says."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.tutorial import run_tutorial, shape, steps

from fusewright.driver.cli import app


def test_every_command_is_one_that_there_is() -> None:
    """With the options that it has: quick, where running them is slow."""
    commands = [shlex.split(step.command) for step in steps() if step.command]
    saved = {step.file for step in steps() if step.file}
    assert len(commands) >= 8 and {"model.py", "use.py"} <= saved
    for words in commands:
        if words[0] == "python":
            assert words[1] in saved
            continue
        assert words[0] == "fusewright"
        known(typer.main.get_command(app), words[1:])


def known(group: Any, words: list[str]) -> None:
    command = group.commands[words[0]]
    options = {option for one in command.params for option in [*one.opts, *getattr(one, "secondary_opts", [])]}
    assert {word for word in words if word.startswith("-")} <= options, words


def test_files_are_python() -> None:
    for step in steps():
        if step.file:
            compile(step.text, step.file, "exec", dont_inherit=True)


def test_numbers_and_paths_may_differ() -> None:
    assert shape("ok    gpu         H200 (9.0, 150 GB)") == shape("note  gpu         none: nothing is timed") != shape("FAIL  gpu  none")
    assert shape("a (/home/me/bin/python) 3.11.7") == shape("a (/opt/python) 3.12")
    assert shape("  a  1.05 MB, 4.85 MFLOP") == shape("a 2 MB, 10 MFLOP") != shape("b 2 MB, 10 MFLOP")


@pytest.mark.slow
def test_it_runs(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run_tutorial(tmp_path, os.environ | {"PATH": path, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"})
