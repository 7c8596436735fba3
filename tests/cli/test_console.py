"""What is shown on a terminal, and what elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fusewright.driver.console import Screen, amount, counted, peak_words, say, stages, words
from fusewright.steps import Step
from fusewright.steps import counted as steps_counted

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


def test_what_is_left_is_shown() -> None:
    """Stages that are ahead from the start, and how many steps of one follow."""
    text = io.StringIO()
    with stages(Console(file=text, force_terminal=True, width=100), ("load", "tune", "verify", "bench")) as show:
        show("load", "model.py")
        for number in range(4):
            show("tune", Step(f"variant {number}", 3 - number))
        show("verify")
    *earlier, last = text.getvalue().split("load ")
    assert "bench" in "".join(earlier)
    assert "variant 3" in last and "━" in last and "bench" not in last  # it was never reached


def test_steps_are_counted_down_in_plain_lines() -> None:
    text = io.StringIO()
    with stages(Console(file=text, width=80)) as show:
        say_next = steps_counted(show, 3)
        for check in ("seeds", "shapes", "gradients", "more than were announced"):
            say_next("verify", check)
    lines = [line.split("verify")[1].strip() for line in text.getvalue().splitlines()]
    assert lines == ["seeds  (2 left)", "shapes  (1 left)", "gradients", "more than were announced"]
