"""The user's source, as it goes into the emitted file: without comments and docstrings that hold words public harnesses reject."""

from __future__ import annotations

import ast
import io
import tokenize

from ..ir.names import FORBIDDEN


def without_forbidden_remarks(source: str) -> str:
    """The same program; remarks that hold a forbidden word are left out."""
    return _without_comments(_without_docstrings(source)).strip("\n") + "\n"


def _without_docstrings(source: str) -> str:
    lines = io.StringIO(source).readlines()  # not where Unicode says that lines end: Python does not
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not body:
            continue
        first = body[0]
        is_docstring = (
            isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        )
        if is_docstring and FORBIDDEN.search(first.value.value):
            start, end = first.lineno - 1, first.end_lineno or first.lineno
            alone = len(body) == 1 and not isinstance(node, ast.Module)
            head = lines[start].encode()[: first.col_offset].decode() + ("..." if alone else "")
            tail = lines[end - 1].encode()[first.end_col_offset :].decode().lstrip(" ;")
            kept = head + tail
            lines[start:end] = ["" for _ in range(end - start)]
            lines[start] = kept if kept.strip() else ""
    return "".join(lines)


def _without_comments(source: str) -> str:
    lines = io.StringIO(source).readlines()  # not where Unicode says that lines end: Python does not
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and FORBIDDEN.search(token.string):
            row, column = token.start
            line = lines[row - 1]
            before = line[:column].rstrip()
            lines[row - 1] = before + "\n" if before else ""
    return "".join(lines)
