"""Fixed text of which each file has only the lines that it needs.

`# if: a, b` at the end of a line: it is there in a file with one of these features. `# unless: a, b`: in a file with none of them. What
is indented below such a line goes with it, and so do the blank lines behind.
"""

from __future__ import annotations

import re
from collections.abc import Collection

MARK = re.compile(r"  # (if|unless): ([\w, ]+)$")


def chosen(text: str, features: Collection[str]) -> str:
    """The lines of `text` for a file with these features, without their marks."""
    found: list[str] = []
    left_out: int | None = None  # how far in the line stands with which others are left out
    blank = before = 0  # lines in front of this one, and of what was left out in front of it
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip())
        if not line or (left_out is not None and depth > left_out):
            blank = 0 if line else blank + 1
            continue
        left_out = None
        mark = MARK.search(line)
        if mark is not None:
            line = line[: mark.start()]
            if (mark[1] == "if") != any(feature in features for feature in mark[2].split(", ")):
                left_out, before, blank = depth, max(before, blank), 0
                continue
        found += [*[""] * (max(before, blank) if found else 0), line]
        blank = before = 0
    return "\n".join(found)
