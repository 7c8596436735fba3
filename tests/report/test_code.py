"""Code with its words coloured, and the lines of PyTorch it came from."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusewright.report.code import (
    code_block,
    cuda_source,
    highlighted,
    line_of,
    lines_in_comment,
    origin_of,
    sections,
    tokens,
)

KERNEL = """\
// softmax_fwd replaces
//   model.py:9  x = x * 2  <- mul
//   model.py:10  return torch.softmax(x, 1)  <- sub, softmax
template <typename Index> // wide
__global__ void __launch_bounds__(256) softmax_fwd_kernel(const float* __restrict__ x_ptr) {
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    const float mul = x[v] * 2.0f;  /* twice
                                       as much */
    softmax_acc[v].add(mul);
  }
  const char* word = "a // no comment \\" still";
}
"""

TEXTS = st.text(alphabet=st.sampled_from(list("ab_01. \n\t\"'/*#<>@\\(){};=+-\u00e9")), max_size=120)


@pytest.mark.parametrize("language", ["cuda", "python"])
@given(text=TEXTS)
def test_tokens_make_up_the_text_again(language: str, text: str) -> None:
    assert "".join(piece for _, piece in tokens(text, language)) == text
    plain = [unescape(re.sub(r"<[^>]*>", "", line)) for line in highlighted(text, language)]
    assert "\n".join(plain) == text


def kinds(text: str, language: str) -> dict[str, str]:
    return {piece: kind for kind, piece in tokens(text, language)}


def test_words_of_cuda() -> None:
    found = kinds(KERNEL, "cuda")
    assert found["__global__"] == found["__launch_bounds__"] == found["__restrict__"] == "device"
    assert found["template"] == found["const"] == found["for"] == "keyword"
    assert found["2.0f"] == found["256"] == "number"
    assert found["#pragma unroll"] == "directive"
    assert found["softmax_fwd_kernel"] == "call" and found["add"] == "call"
    assert found['"a // no comment \\" still"'] == "string"
    assert found["// wide"] == "comment" and any(k.startswith("/*") and found[k] == "comment" for k in found)
    assert kinds("f<<<1, 2>>>(x)", "cuda")["<<<"] == "launch"


def test_words_of_python() -> None:
    found = kinds("@cached\ndef f(self):\n    return g(r'x', 1e-5)  # why\n", "python")
    assert found["def"] == found["return"] == found["self"] == "keyword"
    assert found["@cached"] == "directive" and found["r'x'"] == "string" and found["1e-5"] == "number"
    assert found["# why"] == "comment" and found["g"] == "call"


def test_a_token_over_several_lines_is_closed_in_each() -> None:
    for line in highlighted(KERNEL, "cuda"):
        assert line.count("<span") == line.count("</span>")


def test_nothing_in_the_code_becomes_markup() -> None:
    block = code_block("<script>alert(1)</script> // <b>\n", "cuda")
    assert "<script" not in block and "<b>" not in block


def test_the_cuda_of_a_file(record: dict[str, Any]) -> None:
    cuda = cuda_source(record["emitted"])
    assert cuda.lstrip().startswith("#include") and "__global__" in cuda
    assert cuda_source("source = '''__global__ void k() {}'''\nother = 'x'\n") == "__global__ void k() {}"
    assert cuda_source("not python at all (") == "" and cuda_source("x = 1") == ""


def test_sections(record: dict[str, Any]) -> None:
    kernels = [kernel["name"] for kernel in record["kernels"]]
    cuda = cuda_source(record["emitted"])
    found = sections(cuda, kernels)
    assert found[0].name == "" and "".join(section.text for section in found) == cuda
    assert {section.name for section in found[1:]} <= set(kernels) and len(found) > 1
    assert [s.name for s in sections("__global__ void k() {}", [])] == [""]
    assert sections("", []) == []


def test_lines_of_the_model() -> None:
    found = lines_in_comment(KERNEL)
    assert (found["mul"].line, found["softmax"].code) == (9, "return torch.softmax(x, 1)")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("    const float mul = x[v] * 2.0f;", 9),
        ("    softmax_acc[v].add(mul);", 10),
        ("  float softmax_out[VEC];", None),
        ("    softmax_out[v] = softmax[v];", 10),
        ("  store(&softmax_ptr[i0], softmax_out);", 10),
        ("  softmax_max_ptr[i1] = softmax_max;", 10),
        ("  const Index row = blockIdx.x;", None),
        ("", None),
    ],
)
def test_which_line_a_line_came_from(line: str, expected: int | None) -> None:
    assert origin_of(line, {"mul": 9, "softmax": 10}) == expected


def test_parts_of_a_node_belong_to_it() -> None:
    assert line_of("group_norm_mean", {"group_norm": 4, "group": 2}) == 4
    assert line_of("other", {"group_norm": 4}) is None


def test_the_margin() -> None:
    block = code_block("const float mul = 1;\nint y;", "cuda", {"mul": 9}, {9: 3})
    assert '<b class="from hue3">9</b>' in block and block.count('class="line"') == 2
