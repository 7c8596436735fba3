"""What a run did, for people: one self-contained page, and the same as a compact table in the terminal.

The input is what `optimize --json`, `bench --json` and `suite --json` write. `run_record` says what is in the first two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .page import page
from .record import joined, load_json, load_records, record_in, run_record
from .results import results_in
from .results import table as suite_table
from .suite_page import Suite
from .terminal import table

__all__ = ["joined", "load_records", "page", "report", "run_record", "table"]


def report(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """(the page's HTML, the table's lines) for these files."""
    suites: list[Suite] = []
    records = []
    for path in paths:
        value = load_json(path)
        if isinstance(value, dict) and isinstance(value.get("models"), list):
            suites.append(Suite(path.name, tuple(results_in(value, path))))
        else:
            records.append(record_in(value, path))
    merged = joined(records)
    lines = [line for suite in suites for line in [*suite_table(suite.results), ""]]
    return page(merged, suites), [*lines, *table(merged)] if merged else lines[:-1]
