"""CUDA source to C++: the five things of CUDA's syntax that no macro can express. Every line keeps its number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import HostCompileError

# cuda_on_cpu.h stands for these. <assert.h> too: it would bring back the assert that ends the process.
_HEADERS_OF_CUDA = frozenset(
    "cuda.h cuda_runtime.h cuda_runtime_api.h device_launch_parameters.h cuda_fp16.h cuda_bf16.h math_constants.h "
    "assert.h cassert".split()
)

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_COMMENT_OR_LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_ALIGNMENT = re.compile(r"\b(?:__align__|alignas)\s*\(")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def transform(cuda_source: str) -> str:
    """The same source as C++ for cuda_on_cpu.h: launches, shared arrays, launch bounds, exports, includes rewritten."""
    visible = _COMMENT_OR_LITERAL.sub(_blank, cuda_source)
    edits = [
        *_includes(cuda_source, visible),
        *_noinlines(visible),
        *_exports(cuda_source, visible),
        *_launch_bounds(cuda_source, visible),
        *_shared_declarations(cuda_source, visible),
        *_launches(cuda_source, visible),
        *_names(cuda_source, visible),
    ]
    return _apply(cuda_source, edits)


def kernels_launched(cuda_source: str) -> list[str]:
    """What the source's launches name, each once: `k<float, 4>`. A launch of what it is handed names nothing itself."""
    visible = _COMMENT_OR_LITERAL.sub(_blank, cuda_source)
    launched = [kernel for kernel, *_ in _found_launches(cuda_source, visible) if not _is_parameter(kernel, visible)]
    return list(dict.fromkeys([*launched, *(kernel for kernel, *_ in _handed(cuda_source, visible))]))


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _apply(source: str, edits: list[_Edit]) -> str:
    """Each edit replaces its stretch of the source; the newlines of that stretch are kept."""
    pieces, position = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < position:
            raise _error(source, edit.start, "cannot be read: two CUDA constructs overlap")
        newlines = source.count("\n", edit.start, edit.end)
        pieces += [source[position : edit.start], edit.text, "\n" * (newlines - edit.text.count("\n"))]
        position = edit.end
    return "".join(pieces) + source[position:]


def line_of(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


def _error(source: str, position: int, what: str) -> HostCompileError:
    return HostCompileError(what, line=line_of(source, position), source=source)


def _includes(source: str, visible: str) -> Iterator[_Edit]:
    for match in _INCLUDE.finditer(source):
        is_commented_out = visible[match.start() : match.end()].isspace()
        if match[1] in _HEADERS_OF_CUDA and not is_commented_out:
            yield _Edit(match.start(), match.end(), "")


def _noinlines(visible: str) -> Iterator[_Edit]:
    for match in re.finditer(r"\b__noinline__\b", visible):
        yield _Edit(match.start(), match.end(), "__attribute__((noinline))")


def _exports(source: str, visible: str) -> Iterator[_Edit]:
    """Everything is hidden in the library but what is extern "C"."""
    for match in re.finditer(r'\bextern\s*"C"', source):
        if not visible.startswith("extern", match.start()):
            continue
        opening = _skip_space(visible, match.end())
        if visible.startswith("{", opening):
            closing = _closing(source, visible, opening)
            yield _Edit(match.start(), match.end(), '_Pragma("GCC visibility push(default)") ' + match[0])
            yield _Edit(closing + 1, closing + 1, ' _Pragma("GCC visibility pop")')
        else:
            yield _Edit(match.start(), match.end(), match[0] + ' __attribute__((visibility("default")))')


def _launch_bounds(source: str, visible: str) -> Iterator[_Edit]:
    """`__launch_bounds__(256, 2) k(...) {` becomes `k(...) { check_launch_bounds(256);`."""
    for match in re.finditer(r"\b__launch_bounds__\s*\(", visible):
        closing = _closing(source, visible, match.end() - 1)
        bound = _split(source, visible, match.end(), closing)[0]
        yield _Edit(match.start(), closing + 1, "")
        parameters = visible.find("(", closing)
        if parameters < 0:
            continue
        body = _skip_space(visible, _closing(source, visible, parameters) + 1)
        is_definition = visible.startswith("{", body)
        if is_definition:
            yield _Edit(body + 1, body + 1, f" cuda_on_cpu::check_launch_bounds({_one_line(bound)});")


def _shared_declarations(source: str, visible: str) -> Iterator[_Edit]:
    """`__shared__ float a[4], b;` becomes references into the block's arena, `extern __shared__ T s[];` a pointer."""
    declaration = re.compile(
        r"(?P<extern>\bextern\s+)?(?:\bstatic\s+)?\b__shared__\b(?:\s+(?P<late_extern>extern)\b)?(?P<rest>[^;]*);"
    )
    for match in declaration.finditer(visible):
        rest = _without_alignment(source, visible, match.start("rest"), match.end("rest"))
        declarators = _split_text(rest)
        type_name, name, sizes = _first_declarator(declarators[0])
        if not name:
            raise _error(source, match.start(), "a __shared__ declaration that cannot be read")
        is_dynamic = match["extern"] is not None or match["late_extern"] is not None
        if is_dynamic:
            text = f"{type_name}* const {name} = cuda_on_cpu::dynamic_shared<{type_name}>();"
        else:
            line = line_of(source, match.start())
            text = _shared_variable(type_name, name, sizes, line)
            for declarator in declarators[1:]:
                _, name, sizes = _first_declarator(f"{type_name} {declarator}")
                text += " " + _shared_variable(type_name, name, sizes, line)
        yield _Edit(match.start(), match.end(), text)


def _shared_variable(type_name: str, name: str, sizes: str, line: int) -> str:
    return (
        f"using {name}_shared_type = {type_name}{sizes}; "
        f'static constexpr cuda_on_cpu::SharedName {name}_shared_name = {{"{name}", {line}}}; '
        f"{name}_shared_type& {name} = cuda_on_cpu::shared_variable<{name}_shared_type>(&{name}_shared_name);"
    )


def _without_alignment(source: str, visible: str, start: int, end: int) -> str:
    """The arena aligns every array to 128 bytes."""
    text, position = "", start
    while match := _ALIGNMENT.search(visible, position, end):
        text += visible[position : match.start()]
        position = _closing(source, visible, match.end() - 1) + 1
    return _one_line(text + visible[position:end])


def _first_declarator(text: str) -> tuple[str, str, str]:
    """`float tile[4][5]` is (`float`, `tile`, `[4][5]`). Brackets inside template arguments belong to the type."""
    depth, sizes_at = 0, len(text)
    for position, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "[" and depth == 0:
            sizes_at = position
            break
    head = text[:sizes_at].rstrip()
    name = re.search(r"[A-Za-z_]\w*$", head)
    if name is None:
        return "", "", ""
    return head[: name.start()].strip(), name[0], text[sizes_at:].strip()


def _launches(source: str, visible: str) -> Iterator[_Edit]:
    """`k<float, 4><<<grid, block>>>(x)` becomes `launch("k<float, 4>", Geometry(grid, block), k<float, 4>, x)`."""
    for kernel, start, opening, closing, arguments in _found_launches(source, visible):
        has_arguments = visible[arguments + 1 : _closing(source, visible, arguments)].strip() != ""
        yield _Edit(start, opening + 3, f'cuda_on_cpu::launch("{quoted(kernel)}", cuda_on_cpu::Geometry(')
        yield _Edit(closing, arguments + 1, f"), {kernel}{', ' if has_arguments else ''}")


def _names(source: str, visible: str) -> Iterator[_Edit]:
    """`launch(k<float, 4>, grid)`: what is launched there is known as `k<float, 4>`."""
    for kernel, start, end in _handed(source, visible):
        yield _Edit(start, end, f'cuda_on_cpu::known_as("{quoted(kernel)}", {kernel})')


def _handed(source: str, visible: str) -> Iterator[tuple[str, int, int]]:
    """Of each kernel that is handed to what launches it, `launch(k<float, 4>, grid)`: its name, and where that is."""
    for match in re.finditer(r"\blaunch\s*\(\s*(?=[A-Za-z_][\w:]*\s*<)", visible):
        end = _end_of_arguments(visible, visible.index("<", match.end()))
        if end is not None and visible[_skip_space(visible, end)] in ",)":
            yield _one_line(source[match.end() : end]), match.end(), end


def _end_of_arguments(visible: str, opening: int) -> int | None:
    """Behind the template arguments that begin with `<`; None where it is none that begins there."""
    depth = 0
    for position in range(opening, len(visible)):
        char = visible[position]
        depth += (char == "<") - (char == ">")
        if char in "();{}":
            return None
        if depth == 0:
            return position + 1
    return None


def _is_parameter(kernel: str, visible: str) -> bool:
    """A launch names what a lambda is handed: `[&](auto variant) { variant<<<...>>>(...); }`."""
    return re.search(rf"\bauto\s+{re.escape(kernel)}\s*[,)]", visible) is not None


def quoted(text: str) -> str:
    """As the inside of a string of C++."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _found_launches(source: str, visible: str) -> Iterator[tuple[str, int, int, int, int]]:
    """Of each launch: its kernel, and where that begins, where `<<<` is, `>>>`, and the arguments' bracket."""
    position = 0
    while (opening := visible.find("<<<", position)) >= 0:
        start = _start_of_kernel(source, visible, opening)
        kernel = _one_line(source[start:opening])
        closing = _end_of_geometry(source, visible, opening + 3)
        arguments = _skip_space(visible, closing + 3)
        if not kernel or not visible.startswith("(", arguments):
            raise _error(source, opening, "a launch that cannot be read")
        yield kernel, start, opening, closing, arguments
        position = arguments + 1


def _start_of_kernel(source: str, visible: str, end: int) -> int:
    """Where `ns::k<float, (A > B)>` begins that ends just before `end`."""
    start = len(visible[:end].rstrip())
    if visible[start - 1 : start] == ">":
        depth = 0
        while start > 0:
            start -= 1
            char = visible[start]
            if char == ")":
                start = _opening(source, visible, start)
            depth += (char == ">") - (char == "<")
            if depth == 0:
                break
        start = len(visible[:start].rstrip())
    elif visible[start - 1 : start] in (")", "]"):
        start = _opening(source, visible, start - 1)
    while start > 0 and (visible[start - 1].isalnum() or visible[start - 1] in "_:"):
        start -= 1
    return start


def _end_of_geometry(source: str, visible: str, start: int) -> int:
    position = start
    while position < len(visible):
        if visible.startswith(">>>", position):
            return position
        position = _closing(source, visible, position) + 1 if visible[position] in "([{" else position + 1
    raise _error(source, start, "<<< without >>>")


# ---- reading


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


_PAIRS = {"(": ")", "[": "]", "{": "}"}


def _closing(source: str, visible: str, opening: int) -> int:
    """Where the bracket at `opening` closes."""
    expected: list[str] = []
    for position in range(opening, len(visible)):
        char = visible[position]
        if char in _PAIRS:
            expected.append(_PAIRS[char])
        elif expected and char == expected[-1]:
            expected.pop()
            if not expected:
                return position
    raise _error(source, opening, f"'{visible[opening]}' is never closed")


def _opening(source: str, visible: str, closing: int) -> int:
    """Where the bracket that closes at `closing` opens."""
    depth = 0
    for position in range(closing, -1, -1):
        depth += (visible[position] in ")]") - (visible[position] in "([")
        if depth == 0:
            return position
    raise _error(source, closing, f"'{visible[closing]}' was never opened")


def _split(source: str, visible: str, start: int, end: int) -> list[str]:
    """The arguments between two brackets."""
    return _split_text(visible[start:end])


def _split_text(text: str) -> list[str]:
    """At the commas outside all brackets, template arguments' included."""
    parts, depth, begin = [], 0, 0
    for position, char in enumerate(text):
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            parts.append(text[begin:position].strip())
            begin = position + 1
    return [*parts, text[begin:].strip()]
