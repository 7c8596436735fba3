"""The page's numbers as a compact table of text: one line for each subject of each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..words import STATUSES, errors_shown, is_number, percent, shown_amount, shown_ms, status_of, times, training_words

Record = Mapping[str, Any]
COLUMNS = ("", "forward", "against eager", "with backward", "against eager", "peak memory", "of a step", "own kernels")


def table(records: Sequence[Record]) -> list[str]:
    """For each model: a heading, its subjects in aligned columns, and what is said of each."""
    lines: list[str] = []
    for record in records:
        lines += [str(record["model"])]
        try:
            lines += [f"  {line}".rstrip() for line in _model(record)]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            lines.append("  this record cannot be read")
        lines.append("")
    return lines[:-1]


def _model(record: Record) -> list[str]:
    passed = record.get("verified")
    verdict = record.get("verdict")
    if isinstance(verdict, Mapping):
        passed = verdict["passed"]
        names = {word: [check["name"] for check in verdict["checks"] if status_of(check) == word] for word in STATUSES}
        words = f"{len(names['held'])} checks held"
        words += f", {len(names['skipped'])} skipped" if names["skipped"] else ""
        words += f"; failed: {', '.join(names['failed'])}" if names["failed"] else ""
    else:
        words, verdict = "", {}
    state = "not verified in this run" if passed is None else "verified" if passed else "NOT EQUAL to the model"
    lines = [f"{state}{', ' if words else ''}{words}", *errors_shown(verdict.get("errors") or {})]
    kernels = record.get("kernels")
    if kernels:
        lines.append("kernels: " + ", ".join(str(kernel["name"]) for kernel in kernels))
    rules = record.get("rules")
    if rules:
        lines.append("laws: " + "; ".join(map(str, rules)))
    if record.get("training"):
        lines.append(f"in training: {training_words(record['training'])}")
    bench = record.get("bench")
    if not bench:
        return [*lines, "not timed: timing needs a GPU"]
    rows = [_row(row) for row in bench["rows"] if row["kind"] != "control"]
    if is_number(bench.get("floor_ms")):
        rows.append(["floor", shown_ms(bench["floor_ms"]), *[""] * (len(COLUMNS) - 2)])
    kept = [k for k in range(len(COLUMNS)) if k == 0 or any(row[k] for row in rows)]
    lines += aligned([[COLUMNS[k] for k in kept], *([row[k] for k in kept] for row in rows)])
    lines += [f"{row['name']}: {row['verdict']}" for row in bench["rows"] if row["kind"] != "baseline"]
    lines += [f"{row['name']}: {note}" for row in bench["rows"] for note in row.get("notes") or []]
    lines += [f"note: {note}" for note in bench.get("notes") or []]
    return [*lines, _conditions(bench)]


def _row(row: Mapping[str, Any]) -> list[str]:
    forward, backward = row.get("forward") or {}, row.get("backward") or {}
    return [
        str(row["name"]) + ("" if row["stands"] or row["kind"] != "candidate" else " (!)"),
        shown_ms(forward["ms"]) if forward else "–",
        _ratio(forward),
        shown_ms(backward["ms"]) if backward else "",
        _ratio(backward),
        shown_amount(forward.get("extra_bytes"), "B"),
        shown_amount(backward.get("extra_bytes"), "B"),
        percent(row.get("own_share")),
    ]


def _ratio(measured: Mapping[str, Any]) -> str:
    ratio = measured.get("speedup")
    if not ratio or not is_number(ratio["value"]):
        return ""
    low, high = (times(ratio[k]) if is_number(ratio[k]) else "?" for k in ("low", "high"))
    return f"{times(ratio['value'])} [{low}, {high}]"


def _conditions(bench: Mapping[str, Any]) -> str:
    flags = bench.get("flags") or {}
    versions = bench.get("versions") or {}
    tf32 = [what for what in ("convolutions", "matmuls") if flags.get(f"tf32 in {what}")]
    words = [
        str(bench["gpu"].get("name")),
        f"torch {versions.get('torch')}",
        f"TF32 in {' and '.join(tf32)}" if tf32 else "no TF32",
        *(f"{name}: yes" for name in ("cudnn benchmark", "deterministic algorithms", "autocast") if flags.get(name)),
    ]
    return ", ".join(words)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if k == 0 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
