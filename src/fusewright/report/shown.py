"""A record that shows itself: as text where text is asked for, as the page in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from ..errors import Refused
from .page import page
from .record import load_json, record_in
from .results import results_in
from .results import table as suite_table
from .suite_page import Suite
from .terminal import table

HEIGHT = 720  # pixels of a notebook; the page scrolls inside


class Report(Mapping[str, Any]):
    """What a run did: a mapping of what `--json` writes, of one model or of a suite.

    In a notebook it is the page that `fusewright report` writes; printed, it is the table of the terminal.

    >>> report = fusewright.Report.load("run.json")
    >>> report["verified"]
    True
    >>> report.save("report.html")
    """

    def __init__(self, record: Mapping[str, Any], name: str = "suite") -> None:
        """`record`: what `optimize`, `bench` or `suite` leaves behind. `name`: what the page calls a suite."""
        self._record, where = dict(record), Path(name)
        whole = isinstance(self._record.get("models"), list)
        self._suites = [Suite(where.name, tuple(results_in(self._record, where)))] if whole else []
        self._records = [] if whole else [record_in(self._record, where)]

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Of a file that `optimize --json`, `bench --json` or `suite --json` wrote; Refused: it holds something else."""
        value, path = load_json(Path(path)), Path(path)
        return cls(value if isinstance(value, dict) else record_in(value, path), str(path))

    def html(self) -> str:
        """The page: self-contained, no script, nothing fetched."""
        return page(self._records, self._suites)

    def save(self, path: str | Path) -> None:
        """Write the page."""
        try:
            Path(path).write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise Refused(f"{path}: cannot be written: {error.strerror or error}") from error

    def __getitem__(self, key: str) -> Any:
        return self._record[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)

    def __repr__(self) -> str:
        lines = [line for suite in self._suites for line in suite_table(suite.results)]
        return "\n".join([*lines, *table(self._records)])

    def _repr_html_(self) -> str:
        """In a frame of its own: the page's style is for the page alone."""
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe srcdoc="{escape(self.html(), quote=True)}" style="{style}" title="Fusewright"></iframe>'
