"""What a run did, for people: one self-contained page, and the same as a compact table in the terminal.

The input is what `optimize --json` and `bench --json` write. `run_record` says what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .page import page
from .record import joined, load_records, run_record
from .terminal import table

__all__ = ["joined", "load_records", "page", "report", "run_record", "table"]


def report(paths: Sequence[Path]) -> tuple[str, list[str]]:
    """(the page's HTML, the table's lines) for these records."""
    records = load_records(paths)
    return page(records), table(records)
