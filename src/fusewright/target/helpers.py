"""Device helpers: the functions and types that kernels share, as records.

A helper is chosen because code calls it, or because a chosen one needs it, and stands behind all that it needs. In a `.cuh` file a
line `//: section NAME`, followed by what is to be said of it, starts one:

    defines A B    the words by which code calls it (its own name, where nothing is said)
    needs C D      the helpers that its text calls
    joins E F      it is an overload or a specialization: there wherever all of these are, and called by no word of its own
    on hopper      its text has instructions that only a Hopper's own architecture knows
    of tf32 f16    it is a helper for each of these kinds of operands (`KINDS`): `$kind` and what follows from it stand in its name and text
    each 4 8       and for each of these numbers of fragments: `$F` and what follows from it
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

SECTION = "//: section "
FILES = (
    "prelude.cuh", "prelude_reduce.cuh", "prelude_scan.cuh", "prelude_mma.cuh", "prelude_ptx.cuh", "prelude_short.cuh", "conv_support.cuh",
)  # fmt: skip
BASE = ("base", "unpacked")  # what every unit has: includes, what a launcher returns, and how Python calls one
SAID = ("defines", "needs", "joins", "on", "of", "each")
# What follows from the kind of a tensor core's operands: the depth of a product; of its assembly, how operands of 16 bits lie (their depth
# side by side); on the host, what two words x and y multiply to.
KINDS = {
    "tf32": {"depth": "8", "order": "", "word_product": "double(x) * y"},
    **{
        kind: {
            "depth": "16", "order": ", 0, 0",
            "word_product": f"cuda_on_cpu::{kind}_product(__float_as_uint(x), __float_as_uint(y))",
        }
        for kind in ("f16", "bf16")
    },
}  # fmt: skip


@dataclass(frozen=True)
class TwoBodies:
    """The text of a helper that the host runs in another way: `#ifdef CUDA_ON_CPU`, the host's body, `#else`, the device's, `#endif`."""

    before: str
    host: str
    device: str
    behind: str
    is_all: bool  # nothing but remarks stands around them


@dataclass(frozen=True)
class Helper:
    name: str
    text: str
    needs: tuple[str, ...] = ()
    defines: tuple[str, ...] = ()
    joins: tuple[str, ...] = ()
    on_hopper: bool = False
    bodies: TwoBodies | None = None  # None: one for both
    kinds: tuple[str, ...] = ()  # of operands, each of which has a helper of its own
    each: tuple[int, ...] = ()  # numbers of fragments, likewise

    @property
    def requires(self) -> tuple[str, ...]:
        """What has to stand before it."""
        return (*self.needs, *self.joins)


def section(whole: str) -> Helper:
    """The record of a section, from the line that starts it on."""
    head, _, body = whole.partition("\n")
    name, *rest = head.removeprefix(SECTION).split()
    said: dict[str, list[str]] = {word: [] for word in SAID}
    for word in rest:
        if word in SAID:
            into = said[word]
        else:
            into.append(word)
    defines = said["defines"] or ([] if said["joins"] else [name])
    text = body.strip() + "\n"
    names = (tuple(said["needs"]), tuple(defines), tuple(said["joins"]))
    return Helper(name, text, *names, said["on"] == ["hopper"], two_bodies(text), tuple(said["of"]), tuple(map(int, said["each"])))


def of_kind(helper: Helper, kind: str) -> Helper:
    """The helper for operands of this kind."""
    values = {"kind": kind, **KINDS[kind]}
    name, text, *needs = (Template(words).safe_substitute(values) for words in (helper.name, helper.text, *helper.needs))
    return replace(helper, name=name, defines=(name,), needs=tuple(needs), text=text, bodies=two_bodies(text), kinds=())


def of_fragments(helper: Helper, count: int) -> Helper:
    """The helper for a product of so many fragments: their registers and the operands behind them, as assembly counts them."""
    rows = [", ".join(f"%{4 * f + r}" for r in range(4)) for f in range(count)]
    pairs = [", ".join(rows[f : f + 4]) for f in range(0, count, 4)]
    lanes = [", ".join(f"LANE({k})" for k in range(f, min(f + 8, count))) for f in range(0, count, 8)]
    values = {
        "F": count,
        "positions": 8 * count,
        "registers": "\n".join([*(f'      "{four}, "' for four in pairs[:-1]), f'      "{pairs[-1]}"']),
        "lanes": ",\n        ".join(lanes),
        **{name: 4 * count + k for k, name in enumerate(("a0", "a1", "b0", "b1"))},
    }
    name, text = (Template(words).substitute(values) for words in (helper.name, helper.text))
    return replace(helper, name=name, defines=(name,), text=text, bodies=two_bodies(text), each=())


def two_bodies(text: str) -> TwoBodies | None:
    before, both, rest = text.partition("#ifdef CUDA_ON_CPU\n")
    host, _, rest = rest.partition("#else\n")
    device, _, rest = rest.rpartition("#endif")
    behind = rest.partition("\n")[2]
    is_all = not behind and all(line.startswith("//") for line in before.splitlines())
    return TwoBodies(before, host, device, behind, is_all) if both else None


@functools.lru_cache(maxsize=1)
def helpers() -> dict[str, Helper]:
    """Every helper, by its name."""
    found: dict[str, Helper] = {}
    for helper in (helper for file in FILES for helper in of_file(file)):
        assert helper.name not in found, f"{helper.name} is two helpers"
        found[helper.name] = helper
    return found


def of_file(file: str) -> list[Helper]:
    """Those of one header, in order."""
    read = map(section, f"\n{(Path(__file__).parent / file).read_text()}".split(f"\n{SECTION}")[1:])
    kinds = [helper for one in read for helper in ([of_kind(one, kind) for kind in one.kinds] or [one])]
    return [helper for one in kinds for helper in ([of_fragments(one, count) for count in one.each] or [one])]


@functools.lru_cache(maxsize=1)
def device_names() -> frozenset[str]:
    """What the functions, types and constants that kernels share are called: no value in a kernel may be."""
    return frozenset(word for helper in helpers().values() for word in (helper.name, *helper.defines))


@functools.lru_cache(maxsize=1)
def _defined() -> dict[str, tuple[str, ...]]:
    """By word: the helpers that it calls."""
    found: dict[str, tuple[str, ...]] = {}
    for helper in helpers().values():
        for word in helper.defines:
            found[word] = (*found.get(word, ()), helper.name)
    return found


def named(words: Iterable[str]) -> frozenset[str]:
    """The helpers that are called by these words: those of statements (`ir.stmt.words`), of pieces of templates, types of parameters."""
    defined = _defined()
    return frozenset(name for word in words for name in defined.get(word, ()))


def closure(wanted: Iterable[str], others: Iterable[Helper] = ()) -> list[Helper]:
    """These helpers and `others`, with all that they need, each behind what it needs."""
    known = helpers() | {helper.name: helper for helper in others}
    chosen: set[str] = set()
    left = [*BASE, *wanted, *(helper.name for helper in others)]
    while left:
        name = left.pop()
        if name not in chosen:
            chosen.add(name)
            left += known[name].requires
        if not left:
            left = [h.name for h in known.values() if h.joins and h.name not in chosen and chosen.issuperset(h.joins)]
    placed: dict[str, Helper] = {}

    def place(helper: Helper) -> None:
        if helper.name not in placed:
            for need in known:  # in the order of the files, where needs leave a choice
                if need in helper.requires:
                    place(known[need])
            placed[helper.name] = helper

    for name, helper in known.items():
        if name in chosen:
            place(helper)
    return list(placed.values())


def device_texts(chosen: Iterable[Helper]) -> list[str]:
    """What the emitted file carries: where there are two bodies, only the device's, which a host build skips. Those next to each
    other are skipped as one."""
    found: list[str] = []
    skipped: list[str] = []
    for helper in (*chosen, None):
        bodies = helper.bodies if helper is not None else None
        if bodies is not None and bodies.is_all:
            skipped.append(bodies.before + bodies.device)
            continue
        if skipped:
            found.append("#ifndef CUDA_ON_CPU\n" + "\n".join(skipped) + "#endif\n")
            skipped = []
        if bodies is not None:
            found.append(f"{bodies.before}#ifndef CUDA_ON_CPU\n{bodies.device}#endif\n{bodies.behind}")
        elif helper is not None:
            found.append(helper.text)
    return found


def host_text() -> str:
    """The host bodies of all helpers that have one: what a host build puts in front of the emitted source."""
    return "".join(helper.bodies.host for helper in helpers().values() if helper.bodies is not None)
