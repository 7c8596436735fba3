"""Statements as a person would write them: `codegen/loops/tidy.py`."""

from __future__ import annotations

from fusewright.codegen.loops.tidy import tidied
from fusewright.ir import functions as fn
from fusewright.ir.expr import Expr, Name, element
from fusewright.ir.stmt import Assign, Declare, Do, For, Statement, array, block, const, counted, printed

ROW, V, VEC = Name("row"), Name("v"), Name("VEC")


def filled(name: str, value: Expr) -> list[Statement]:
    return [array("float", name, VEC), counted("v", VEC, Assign(element(Name(name), V), value))]


def of(name: str) -> Expr:
    return element(Name(name), V)


def test_loops_over_the_same_elements_are_one() -> None:
    body = [*filled("a", fn.exp(of("x"))), *filled("b", of("a") + 1), *filled("c", of("b") * of("a")), Do(fn.store(ROW, Name("c")))]
    assert printed(tidied(body)) == [
        "float c[VEC];",
        "#pragma unroll",
        "for (int v = 0; v < VEC; ++v) {",
        "  const float a = expf(x[v]);",
        "  const float b = a + 1;",
        "  c[v] = b * a;",
        "}",
        "store(row, c);",
    ]


def test_what_is_read_at_another_element_is_computed_before() -> None:
    body = [*filled("a", of("x")), *filled("b", element(Name("a"), 0) + of("a")), Do(fn.store(ROW, Name("b")))]
    assert tidied(body) == body


def test_loops_over_other_elements_stay_two() -> None:
    other = counted("v", 3, Assign(of("b"), of("a")))
    body = [*filled("a", of("x")), array("float", "b", 3), other, Do(fn.store(ROW, Name("b")))]
    assert tidied(body) == body


def test_an_index_has_one_name() -> None:
    body = [const("Index", "i1", ROW), const("Index", "i2", Name("i1")), Assign(element(Name("out"), Name("i2")), Name("i1"))]
    assert printed(tidied(body)) == ["out[row] = row;"]


def test_what_changes_is_named_at_its_time() -> None:
    item = Name("item")
    loop = For(Declare("Index", "item", ROW), item < 4, Assign(item, item + 1), block([]))
    body = [const("Index", "first", item), loop, Assign(element(Name("out"), Name("first")), ROW)]
    assert tidied(body)[0] == body[0]
