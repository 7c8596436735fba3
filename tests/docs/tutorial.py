"""docs/tutorial.md as a list of steps, and a way to run them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r'^```(?P<kind>sh|text|python)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A file to save, or a command with lines that it shows."""

    file: str = ""
    text: str = ""
    command: str = ""
    shows: tuple[str, ...] = ()


def steps() -> list[Step]:
    found: list[Step] = []
    for block in BLOCK.finditer(PAGE.read_text()):
        if block["kind"] == "python":
            assert block["title"], "a block of Python is a file to save"
            found.append(Step(file=block["title"], text=block["body"]))
        elif block["kind"] == "sh":
            found += [Step(command=line) for line in block["body"].splitlines()]
        else:
            assert found and found[-1].command, "a block of text is what the command before it shows"
            found[-1] = Step(command=found[-1].command, shows=tuple(block["body"].splitlines()))
    return found


DOCTOR = re.compile(r"(?:ok|note)\s+(python|torch|gpu|self-test)\s")  # what it finds is this machine's own


def shape(line: str) -> str:
    """A line without what differs from run to run: numbers, paths, how wide a column is, what the doctor finds."""
    looked_at = DOCTOR.match(line)
    if looked_at:
        return f"doctor: {looked_at[1]}"
    return re.sub(r"\s+", " ", re.sub(r"\d+(?:\.\d+)*(?:e-?\d+)?(?:\+\w+)?", "#", re.sub(r"\(/[^)]*\)", "(path)", line))).strip()


def run_tutorial(folder: Path, environment: Mapping[str, str]) -> None:
    """Every step in this folder; a command that fails, or does not show what the page has, is an assertion."""
    for step in steps():
        if step.file:
            (folder / step.file).write_text(step.text)
            continue
        done = subprocess.run(step.command, shell=True, cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{step.command}\n{done.stdout}\n{done.stderr}"
        shown = {shape(line) for line in done.stdout.splitlines()}
        missing = [line for line in step.shows if shape(line) not in shown]
        assert not missing, f"{step.command} does not show {missing}:\n{done.stdout}"
