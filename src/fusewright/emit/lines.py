"""Statements of Python, broken into lines of a width that is good to read."""

from __future__ import annotations

from collections.abc import Sequence

from ..codegen.loops.text import wrapped

WIDTH = 136  # of a line, where a function's body begins


def unpacked(names: Sequence[str]) -> str:
    """What a sequence is assigned to, one name for each of its items."""
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)


def given_lines(symbols: Sequence[str], names: Sequence[str], tensors: str, straight: bool = False) -> list[str]:
    """What a function is given, `sizes` and a list of tensors, under names; if `straight`, contiguous ones."""
    target, given = f"({unpacked(names)})", f"map(_contiguous, {tensors})" if straight else tensors
    if straight and len(names) == 1:
        target, given = names[0], f"{tensors}[0].contiguous()"
    line = f"({unpacked(symbols)}), {target} = sizes, {given}" if symbols else f"{target} = {given}"
    if len(line) <= WIDTH:
        return [line]
    return [*([f"{unpacked(symbols)} = sizes"] if symbols else []), *wrapped("(", list(names), f") = {given}", limit=WIDTH)]


def contiguous_lines(names: Sequence[str]) -> list[str]:
    """Tensors as contiguous ones; the same where they are."""
    if not names:
        return []
    line = f"{', '.join(names)} = {', '.join(f'{name}.contiguous()' for name in names)}"
    half = len(names) // 2
    return [line] if len(line) <= WIDTH or not half else [*contiguous_lines(names[:half]), *contiguous_lines(names[half:])]


def bracketed(opening: str, items: Sequence[str], closing: str) -> list[str]:
    """Pieces of text that are joined by commas later."""
    return [f"{opening}{items[0]}", *items[1:-1], f"{items[-1]}{closing}"] if len(items) > 1 else [f"{opening}{''.join(items)}{closing}"]


def all_of(tests: Sequence[str]) -> list[str]:
    """The last lines of a function: whether all of these hold."""
    line = f"    return {' and '.join(tests) or True}"
    if len(line) <= WIDTH:
        return [line]
    lines = [f"        {tests[0]}"]
    for test in tests[1:]:
        fits = len(lines[-1]) + len(test) + 5 <= WIDTH
        lines[-1:] = [f"{lines[-1]} and {test}"] if fits else [lines[-1], f"        and {test}"]
    return ["    return (", *lines, "    )"]


def table(name: str, brackets: str, rows: list[str], remark: str) -> str:
    """A tuple or a dict of rows; on one line where there is only one, and it fits."""
    opening, closing = brackets[0], brackets[1]
    single = ",)" if brackets == "()" and rows else closing
    line = f"{name} = {opening}{''.join(rows)}{single}  # {remark}"
    if len(rows) <= 1 and len(line) <= WIDTH:
        return line
    return "\n".join([f"{name} = {opening}  # {remark}", *(f"    {row}," for row in rows), closing])
