"""What a user is told when Fusewright will not do something."""

from __future__ import annotations

import re


class Refused(Exception):
    """One clear sentence for the user; the command prints it and exits with status 2."""


class Ended(Refused):
    """A candidate's code ended Python, or its process. That is no bad input: it does not equal the model."""


class Short(Refused):
    """Memory ran out where nothing smaller is left to try."""


class Raised(Exception):
    """What a candidate's code raised in another process: its kind and first line."""


class Unsupported(Refused):
    """This model cannot be captured; the sentence says where (file and line) and why."""


class Fault(Exception):
    """A fault of ours, of which nothing else was raised: what was written did not verify."""


LONGEST = 300  # characters of what others say in a sentence of ours
_OF_A_COMPILER = re.compile(r"\b(?:error|fatal)\s*:")  # as g++, nvcc and ptxas have it


def first_line(error: BaseException) -> str:
    """What an error says, in one line that is not too long: of a build that failed, the compiler's first error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("Error building extension"):  # then ninja's words, the command, and what the compiler wrote
        found = next((line for line in lines if _OF_A_COMPILER.search(line)), "")
        return f"it does not compile: {re.sub(r'^[^ (]*/', '', found.strip())}" if found else lines[0]
    return lines[0] if len(lines[0]) <= LONGEST else f"{lines[0][: LONGEST - 3]}..."
