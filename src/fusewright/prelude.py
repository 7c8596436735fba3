"""Which parts of the prelude a CUDA source uses, written out in order."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

FILES = ("prelude.cuh", "prelude_ptx.cuh", "prelude_fast.cuh", "prelude_short.cuh")

# A section is used when one of these words appears in the kernels; most are called as they are named.
WORDS = {
    "base": r"launch_error",
    "half": r"__half|__nv_bfloat16",
    "convert": r"to_arithmetic|to_memory",
    "convert_half": r"__half|__nv_bfloat16",
    "vector": r"\bload<|\bstore<|\bload\(|\bstore\(",
    "shuffle": r"shuffle_xor|merge_warp",
    "CarriedSum": r"\bScanSum\b",
}


@dataclass(frozen=True)
class Section:
    name: str
    needs: tuple[str, ...]
    text: str


@functools.lru_cache(maxsize=1)
def sections() -> tuple[Section, ...]:
    found = []
    for file in FILES:
        path = Path(__file__).with_name(file)
        text = path.read_text() if path.exists() else ""
        for part in re.split(r"^//: section ", text, flags=re.MULTILINE)[1:]:
            head, _, body = part.partition("\n")
            name, _, needs = head.partition(" needs ")
            found.append(Section(name.strip(), tuple(needs.split()), body.strip() + "\n"))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def device_names() -> frozenset[str]:
    """What the functions and types that kernels share are called: no value in a kernel may be."""
    text = "\n".join(section.text for section in sections())
    functions = re.findall(r"^(?:template <[^>]*> )?(?:inline|static|__device__|__host__)[^(\n=]*?(\w+)\(", text, flags=re.MULTILINE)
    return frozenset(functions) | frozenset(re.findall(r"^(?:template <[^>]*> )?(?:struct|using) (\w+)", text, flags=re.MULTILINE))


def used(kernels: str) -> list[Section]:
    """Sections that the kernels mention, and those these need."""
    by_name = {section.name: section for section in sections()}
    words = set(re.findall(r"\w+", kernels))
    wanted = [s.name for s in sections() if (re.search(WORDS[s.name], kernels) if s.name in WORDS else s.name in words)]
    chosen: set[str] = {"base"}
    while wanted:
        name = wanted.pop()
        if name not in chosen:
            chosen.add(name)
            wanted += by_name[name].needs
    return [section for section in sections() if section.name in chosen]


def device_text(section: Section) -> str:
    """What the emitted file carries: where there are two bodies, only the device's, which a host build skips."""
    match = re.search(r"#ifdef CUDA_ON_CPU\n(.*?)#else\n(.*)#endif[^\n]*\n?", section.text, flags=re.DOTALL)
    if match is None:
        return section.text
    return section.text[: match.start()] + f"#ifndef CUDA_ON_CPU\n{match[2]}#endif\n" + section.text[match.end() :]


def host_text() -> str:
    """The host bodies of all sections that have one: what a host build puts in front of the emitted source."""
    found = []
    for section in sections():
        match = re.search(r"#ifdef CUDA_ON_CPU\n(.*?)#else\n", section.text, flags=re.DOTALL)
        if match is not None:
            found.append(match[1])
    return "".join(found)
