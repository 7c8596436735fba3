"""What a user is told when Fusewright will not do something."""

from __future__ import annotations


class Refused(Exception):
    """One clear sentence for the user; the command prints it and exits with status 2."""


class Ended(Refused):
    """A candidate's code ended Python, or its process. That is no bad input: it does not equal the model."""


class Raised(Exception):
    """What a candidate's code raised in another process: its kind and first line."""


class Unsupported(Refused):
    """This model cannot be captured; the sentence says where (file and line) and why."""
