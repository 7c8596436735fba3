"""Statements as data: what they are printed as, and what can be asked of them."""

from __future__ import annotations

import pytest
import sympy
from torch.utils._sympy.functions import FloorDiv

from fusewright.ir import functions as fn
from fusewright.ir import sizes
from fusewright.ir.cpp import Spelling, to_cpp
from fusewright.ir.expr import (
    AllOf,
    Arg,
    Call,
    Cast,
    Expr,
    Function,
    Name,
    Number,
    Pointer,
    Template,
    Unary,
    address,
    applied,
    both,
    element,
    grouped,
    in_double,
    method,
    signed_sum,
    with_fast_functions,
)
from fusewright.ir.extent import extent
from fusewright.ir.stmt import (
    Assign,
    Block,
    Continue,
    Declare,
    Do,
    EitherWay,
    For,
    If,
    Return,
    Verbatim,
    array,
    block,
    const,
    cost,
    counted,
    names_declared,
    names_read,
    printed,
    statements,
    with_values,
    words,
)
from fusewright.target.helpers import closure, named

i, j, v, row = (Name(name) for name in "i j v row".split())
LOAD, TO_MEMORY = Function("load"), Function("to_memory")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (element(row, i * 4 + v), "row[i * 4 + v]"),
        (element(row, i, v), "row[i][v]"),
        (LOAD(address(element(row, i)), j), "load(&row[i], j)"),
        (TO_MEMORY.of("__half")(row), "to_memory<__half>(row)"),
        (Function("merge_row").of(32)(row), "merge_row<32>(row)"),
        (Function("reinterpret_cast").of(Pointer("Sum", const=True))(row), "reinterpret_cast<const Sum*>(row)"),
        (Cast(Template("Carry", ("ScanSum", "float")), row), "(Carry<ScanSum, float>)row"),
        (method(row, "add", i, j), "row.add(i, j)"),
        (AllOf((i >= 0, j < 3)), "i >= 0 & j < 3"),
        (both(AllOf((i >= 0, j < 3)), row), "i >= 0 & j < 3 && row"),
        (grouped(i + 1) * 2, "(i + 1) * 2"),
        (grouped(i), "i"),
        (grouped(element(row, v)), "row[v]"),
        (grouped(element(row, i + 1)), "(row[i + 1])"),
        (signed_sum([(True, i * 4), (True, j), (False, v)]), "-i * 4 - j + v"),
        (applied(Arg(0) * Arg(1), [i + 1, Cast("float", j)]), "(i + 1) * (float)j"),
        (in_double(fn.exp(i) * 0.5), "::exp(i) * 0.5"),
        (with_fast_functions(fn.sigmoid(fn.exp(i))), "sigmoid_fast(exp_fast(i))"),
    ],
)
def test_expressions_of_kernels(expr: Expr, text: str) -> None:
    assert to_cpp(expr) == text


N, H = sympy.Symbol("n", integer=True, positive=True), sympy.Symbol("h", integer=True, positive=True)


@pytest.mark.parametrize(
    "size",
    [3, -3, N, N * H, -N, N - 3, 3 - N, 2 * N - H, -2 * N + H, N * (H + 1), -N * H + 2, N**2, sympy.Rational(1, 2) * N,
     FloorDiv(N + 3, 4), FloorDiv(N, 4) * 4 - 1, sympy.Max(N, H), N % 3],
)  # fmt: skip
def test_sizes_are_printed_as_they_are_in_launchers(size: sizes.Dim) -> None:
    assert to_cpp(extent(size)) == sizes.c_text(size)


BODY = [
    const("Index", "i", Name("group") % 7),
    array("float", "row", Name("VEC"), note="of a thread"),
    counted("v", Name("VEC"), Assign(element(row, v), fn.exp(element(Name("x_ptr"), i + v)))),
    counted("k", 3, [If(i < 2, block([Continue()])), If(j > 2, Do(method(row, "add", i)), Return())], unroll=False, step=2),
    For(None, i < 4, Assign(i, i + 1), Block(()), unroll=4),
]
TEXT = """\
const Index i = group % 7;
float row[VEC];  // of a thread
#pragma unroll
for (int v = 0; v < VEC; ++v) row[v] = expf(x_ptr[i + v]);
for (int k = 0; k < 3; k += 2) {
  if (i < 2) {
    continue;
  }
  if (j > 2) row.add(i);
  else return;
}
#pragma unroll 4
for (; i < 4; i = i + 1) {
}"""


def test_statements_are_printed_with_pragmas_in_the_first_column() -> None:
    assert printed(BODY) == TEXT.splitlines()
    lines = printed(BODY, depth=2)
    assert lines == [line if line.startswith("#") else f"    {line}" for line in TEXT.splitlines()]


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (Declare("float", "x", refers=True, shape=(v,), value=row, how="const"), "const float(&x)[v] = row;"),
        (Declare("Carry", "x", made_of=(i, j)), "Carry x{i, j};"),
        (Declare("int", "x", i, how="const", also=(("y", j),)), "const int x = i, y = j;"),
        (array("float", "x", 3, 4, how="__shared__"), "__shared__ float x[3][4];"),
    ],
)
def test_declarations(statement: Declare, text: str) -> None:
    assert printed([statement]) == [text]


def test_either_way_asks_only_at_an_edge() -> None:
    body = (If(Function("holds")(i < 3), Do(LOAD(i))),)
    assert printed([EitherWay("taps", (i < 2, j < 2), body)]) == [
        "auto taps = [&](auto holds) {",
        "  if (holds(i < 3)) load(i);",
        "};",
        "if (i < 2 && j < 2) taps([](bool) { return true; });",
        "else taps([](bool test) { return test; });  // at an edge",
    ]
    assert printed([EitherWay("taps", (), body)])[-1] == "taps([](bool) { return true; });"


def test_what_a_body_reads_declares_and_names() -> None:
    assert names_read(BODY) == {"i", "j", "k", "v", "VEC", "group", "row", "x_ptr"}
    assert names_declared(BODY) == {"i", "row", "v", "k"}
    assert {"expf", "Index", "float", "row"} <= words(BODY)
    assert cost([Assign(i, i + 1), If(i < 2, Do(fn.exp(j)))]) == 3
    assert sum(isinstance(statement, Assign) for statement in statements(BODY)) == 3


def test_lines_of_a_template_are_only_printed() -> None:
    body = [block([Verbatim(("__syncthreads();", "i = 3;"), frozenset({"merge_row"}))])]
    assert printed(body) == ["{", "  __syncthreads();", "  i = 3;", "}"]
    assert (names_read(body), words(body)) == (set(), {"merge_row"})


def test_values_take_the_place_of_others_everywhere() -> None:
    changed = with_values(BODY, {element(row, v): Name("x"), Name("j"): Number(5, "int")})
    assert "x = expf(x_ptr[i + v]);" in printed(changed)[3]
    assert "  if (5 > 2) row.add(i);" in printed(changed)


def test_names_and_numbers_can_be_spelled_otherwise() -> None:
    class Capital(Spelling):
        def name(self, name: str) -> str:
            return name.upper() if name in ("i", "copy") else name

        def number(self, text: str, divides: bool) -> str:
            return text if divides else f"<{text}>"

    body = [const("Index", "i", Name("j") % 7 + 3), Do(Call(Function("copy"), (i, Unary("-", Number(1, "int")))))]
    assert printed(body, spelling=Capital()) == ["const Index I = j % 7 + <3>;", "COPY(I, -<1>);"]


def test_helpers_are_those_that_a_body_names() -> None:
    body = [Do(LOAD(i)), Declare("LogSumExp", "total"), const("__half", "x", TO_MEMORY.of("__half")(i))]
    found = named(words(body))
    assert {"half", "convert"} <= found
    assert "LogSumExp" in {word for helper in closure(found) for word in helper.defines}
    assert not named({"i", "row"})
