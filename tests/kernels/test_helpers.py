"""Device helpers are records: each says what it needs, and stands behind it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kernels.nvcc import cubin_of, needs_nvcc
from kernels.words import called

from fusewright.codegen.mma.product import support
from fusewright.host import compile_host
from fusewright.target.helpers import BASE, Helper, closure, device_names, device_texts, helpers

EVERY = [*helpers().values(), support()]
INCLUDE = [helper.name for helper in EVERY if "#include" in helper.text]


def plain(text: str) -> str:
    """Without strings: assembly has words of its own."""
    return re.sub(r'"[^"\n]*"', '""', text)


@pytest.mark.parametrize("helper", EVERY, ids=lambda helper: helper.name)
def test_needs_are_whole(helper: Helper) -> None:
    """A template's body is looked up where it is used: a compiler may not miss what is missing, so its words are asked."""
    own = {helper.name, *(name for name in helpers() if set(helpers()[name].defines) & set(helper.defines))}
    overloads = {name for word in ("meet", "shuffle_xor") for name in called(word) if helper.name == "Relative"}
    members = {"mma_tf32", "ldmatrix_x4"} if helper.name in ("mma_tf32_new", "ldmatrix_x4_trans") else set()  # of the host's runtime
    assert called(plain(helper.text)) - own - overloads - members <= set(helper.requires)


@pytest.mark.parametrize("helper", EVERY, ids=lambda helper: helper.name)
def test_what_is_needed_comes_first(helper: Helper) -> None:
    order = [found.name for found in closure([], [helper])]
    assert len(order) == len(set(order)) and order[: len(BASE)] == list(BASE)
    for found in closure([], [helper]):
        assert all(order.index(need) < order.index(found.name) for need in found.requires)


def test_the_order_is_not_that_of_the_files() -> None:
    late, early = Helper("late", "", ("meet_logsumexp",)), Helper("early", "", ("late",))
    order = [helper.name for helper in closure([], [early, late])]
    assert order.index("late") < order.index("early")
    assert order.index("LOG2_E") < order.index("meet_logsumexp") and order.index("LogSumExp") < order.index("meet_logsumexp")


def test_what_joins_others_is_there_where_they_are() -> None:
    assert "meet_logsumexp" not in [helper.name for helper in closure(["meet"])]
    assert "meet_logsumexp" in [helper.name for helper in closure(["meet", "FastLogSumExp"])]
    assert "convert_half" in [helper.name for helper in closure(["half", "vector"])]


def test_every_definition_is_told() -> None:
    """Functions, types and constants at the top of a helper's text are among what it defines."""
    pattern = r"^(?:template <[^>]*>\s+)?(?:inline|static|constexpr|__device__|__host__|struct|using)[^(\n={]*?(\w+) ?(?=\(|=|\{|;)"
    for helper in helpers().values():
        found = set(re.findall(pattern, helper.text, flags=re.MULTILINE)) - {"alignas"}
        known = {word for name in (helper.name, *helper.requires) for word in (*helpers()[name].defines, name)}
        assert found <= known | {"shuffle_xor", "meet"}, helper.name
        assert found <= device_names()


def test_remarks_call_nothing() -> None:
    assert called("x = 1;  // meet LogSumExp\n// wgmma load(") == frozenset()


def alone(texts: Callable[[list[Helper]], list[str]]) -> str:
    """Every helper in a namespace with nothing but what it needs."""
    shared = "".join(helpers()[name].text for name in INCLUDE)
    spaces = []
    for helper in EVERY:
        parts = [found for found in closure([], [helper]) if found.name not in INCLUDE]
        spaces.append(f"namespace alone_{helper.name} {{\n{''.join(texts(parts))}}}\n")
    return shared + "".join(spaces)


def test_each_compiles_alone_for_the_host() -> None:
    compile_host(alone(lambda parts: [helper.text for helper in parts]))


@pytest.mark.slow
@needs_nvcc
def test_each_compiles_alone_for_a_gpu(tmp_path: Path) -> None:
    cubin_of(alone(device_texts), tmp_path, "sm_90a")
