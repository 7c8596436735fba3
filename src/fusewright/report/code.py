"""CUDA and Python with their words coloured, and beside each line of a kernel the line of PyTorch it came from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

CUDA_KEYWORDS = frozenset(
    "alignas auto bool break case char class const constexpr continue default delete do double else enum explicit "
    "extern false float for goto if inline int long namespace new nullptr operator private protected public return "
    "short signed sizeof static static_assert static_cast reinterpret_cast const_cast struct switch template this true "
    "typedef typename union unsigned using virtual void volatile while".split()
)
PYTHON_KEYWORDS = frozenset(
    "and as assert async await break class continue def del elif else except False finally for from global if import "
    "in is lambda None nonlocal not or pass raise return True try while with yield self super".split()
)
DEVICE = re.compile(r"__\w+__|(?:thread|block|grid)(?:Idx|Dim)|\w+_t\b|dim3|float[234]|int[234]|uint\d*|__\w+")

STRING = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
NUMBER = r"\b(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][-+]?\d+)?)[fFuUlL]*\b"
REST = r"(?P<word>[A-Za-z_]\w*)|(?P<space>\n|[^\S\n]+)|(?P<other>.)"
TOKENS = {
    "cuda": re.compile(
        rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<directive>^[ \t]*#[^\n]*)|(?P<string>{STRING})"
        rf"|(?P<launch><<<|>>>)|(?P<number>{NUMBER})|{REST}",
        re.S | re.M,
    ),
    "python": re.compile(
        rf"(?P<comment>#[^\n]*)|(?P<string>\b[rbfuRBFU]{{1,2}}(?:{STRING})|\'\'\'.*?\'\'\'|\"\"\".*?\"\"\"|{STRING})"
        rf"|(?P<directive>^[ \t]*@[\w.]+)|(?P<number>{NUMBER})|{REST}",
        re.S | re.M,
    ),
}
CLASSES = {
    "comment": "c",
    "directive": "d",
    "string": "s",
    "number": "n",
    "keyword": "k",
    "device": "v",
    "call": "f",
    "launch": "l",
}


def tokens(text: str, language: str) -> Iterator[tuple[str, str]]:
    """(kind, text) pieces that make up the text again: comment, directive, string, number, keyword, device, call."""
    keywords = CUDA_KEYWORDS if language == "cuda" else PYTHON_KEYWORDS
    for found in TOKENS[language].finditer(text):
        kind, piece = str(found.lastgroup), found[0]
        if kind == "word":
            if piece in keywords:
                kind = "keyword"
            elif language == "cuda" and DEVICE.fullmatch(piece):
                kind = "device"
            elif re.match(r"\s*\(", text[found.end() : found.end() + 8]):
                kind = "call"
        yield kind, piece


def highlighted(text: str, language: str) -> list[str]:
    """One piece of HTML for each line; a token that spans lines is closed and opened again."""
    lines = [""]
    for kind, piece in tokens(text, language):
        css = CLASSES.get(kind)
        for position, part in enumerate(piece.split("\n")):
            if position:
                lines.append("")
            if part:
                lines[-1] += f'<span class="{css}">{escape(part)}</span>' if css else escape(part)
    return lines


# ---- the parts of an emitted file ----


@dataclass(frozen=True)
class Section:
    """A stretch of CUDA: what the kernels share (no name), or one kernel."""

    name: str
    text: str


def cuda_source(emitted: str) -> str:
    """The CUDA that a file carries: `_CUDA_SOURCE`, or the strings in it that define kernels."""
    try:
        tree = ast.parse(emitted)
    except (SyntaxError, ValueError):
        return ""
    known: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = string_value(node.value, known)
    if known.get("_CUDA_SOURCE"):
        return known["_CUDA_SOURCE"]
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return "\n\n".join(s for s in strings if "__global__" in s)


def string_value(value: ast.expr, known: Mapping[str, str]) -> str:
    """A string, or strings by name and otherwise that are added."""
    if isinstance(value, ast.BinOp):
        return string_value(value.left, known) + string_value(value.right, known)
    if isinstance(value, ast.Name):
        return known.get(value.id, "")
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def sections(cuda: str, kernels: Sequence[str]) -> list[Section]:
    """What comes before the first kernel, then each kernel from the comment that names it to the next."""
    starts = []
    for name in kernels:
        found = re.search(rf"^// {re.escape(name)} .*$", cuda, re.M)
        if found:
            starts.append((found.start(), name))
    starts.sort()
    if not starts:
        return [Section("", cuda)] if cuda.strip() else []
    ends = [*[at for at, _ in starts[1:]], len(cuda)]
    found_sections = [Section("", cuda[: starts[0][0]])] if cuda[: starts[0][0]].strip() else []
    return found_sections + [Section(name, cuda[at:end]) for (at, name), end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's model."""

    file: str
    line: int
    code: str


def lines_in_comment(text: str) -> dict[str, SourceLine]:
    """Operator -> line, from the comment that starts a kernel."""
    found: dict[str, SourceLine] = {}
    for match in re.finditer(r"^//   (\S+):(\d+)  (.*)  <- (.*)$", text, re.M):
        found |= dict.fromkeys(match[4].split(", "), SourceLine(match[1], int(match[2]), match[3]))
    return found


def origin_of(line: str, names: Mapping[str, int]) -> int | None:
    """The source line of the graph node that this line of CUDA defines or accumulates, if it does."""
    words = [
        r"(?:const )?(?:float|double|int|bool|long long|Index|\w+)(?:\s*\*)? (\w+?)(?:_acc|_tile|_out)?(?:\[\w*\])? =",
        r"(\w+?)(?:_acc|_tile|_out)?(?:\[\w*\])? (?:=|\+=)",
        r"(\w+?)_acc(?:\[\w*\])?\.(?:add|merge)\(",
        r"(?:load|store)\(&?(\w+?)_ptr",
        r"(\w+?)_ptr\[.*\] =",
    ]
    for pattern in words:
        found = re.match(rf"\s*{pattern}", line)
        at = line_of(found[1], names) if found else None
        if at is not None:
            return at
    return None


def line_of(word: str, names: Mapping[str, int]) -> int | None:
    """`group_norm_mean` is a part of the node `group_norm`: the longest name that the word starts with."""
    while word:
        if word in names:
            return names[word]
        word = word.rpartition("_")[0]
    return None


def code_block(
    text: str, language: str, names: Mapping[str, int] | None = None, hues: Mapping[int, int] | None = None
) -> str:
    """Lines of code; with `names`, a margin that holds the line of the model each came from."""
    rows = []
    plain = text.strip("\n").split("\n")
    for line, html in zip(plain, highlighted(text.strip("\n"), language), strict=True):
        margin = ""
        if names is not None:
            at = origin_of(line, names)
            hue = (hues or {}).get(at or 0, 0)
            margin = f'<b class="from hue{hue}">{at}</b>' if at is not None else '<b class="from"></b>'
        rows.append(f'<span class="line">{margin}{html or " "}</span>')
    numbered = " margin" if names is not None else ""
    return f'<pre class="code {language}{numbered}" tabindex="0"><code>{"".join(rows)}</code></pre>'
