"""What is shown on a terminal, and what elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fusewright.console import Screen, amount, counted, peak_words, say, stages, words

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


def run_stages(console: Console) -> None:
    with stages(console) as show:
        show("capture", "12 operators [x]")
        show("verify", "seed 0")
        show("verify", "seed 1")


def test_plain_lines() -> None:
    text = io.StringIO()
    run_stages(Console(file=text, width=20))
    assert [re.sub(r" +", " ", line) for line in text.getvalue().splitlines()] == [
        " 0.0 s capture 12 operators [x]",
        " 0.0 s verify seed 0",
        " 0.0 s verify seed 1",
    ]


def test_a_live_display_on_a_terminal() -> None:
    text = io.StringIO()
    run_stages(Console(file=text, force_terminal=True, width=80))
    last = text.getvalue().split("capture")[-1]
    assert "✓" in last and "0.0 s" in last and "[x]" in last
    assert "seed 1" in last and "seed 0" not in last


def test_a_stage_that_raises_ends_the_display_without_a_tick() -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    with pytest.raises(KeyboardInterrupt), stages(console) as show:
        show("build")
        raise KeyboardInterrupt
    assert "✓" not in text.getvalue()
    assert text.getvalue().endswith("\x1b[?25h"), "the cursor is shown again"


def test_no_color(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    say(Screen(), "wrote", "green")
    assert COLOUR.search(capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    say(Screen(), "wrote", "green")
    assert not COLOUR.search(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("conv", "conv"),
        (["mul", {"name": "softmax", "line": 3}], "mul, softmax"),
        ({"eager_ms": 3.58123, "compile_ms": None}, "eager_ms 3.58"),
        (3, "3"),
    ],
)
def test_words(value: object, text: str) -> None:
    assert words(value) == text


def test_amounts_and_counts() -> None:
    assert [amount(520093696, "B"), amount(1500, "FLOP"), amount(7, "B"), amount(None, "B")] == [
        "520 MB",
        "1.5 kFLOP",
        "7 B",
        "",
    ]
    assert [counted(1, "kernel"), counted(2, "kernel")] == ["1 kernel", "2 kernels"]


def test_both_peaks_are_said() -> None:
    peaks = {"forward": {"eager": 2_700_000_000, "new": 0}, "step": {"eager": 12_600_000_000, "new": 11_900_000_000}}
    assert peak_words(peaks) == "forward: eager 2.7 GB, new 0 B; training step: eager 12.6 GB, new 11.9 GB"
