"""A kernel's statements as a person would write them: no second name for an index, and one loop over the elements of a thread where
values are computed from each other element by element."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...ir.expr import Expr, Name, Subscript, element, walk
from ...ir.stmt import (
    Assign,
    Block,
    Declare,
    EitherWay,
    For,
    If,
    Lambda,
    Statement,
    block,
    const,
    expressions,
    names_declared,
    statements,
    with_values,
)


def tidied(body: Iterable[Statement]) -> list[Statement]:
    return joined_loops([inside(statement) for statement in without_aliases(list(body))])


def inside(statement: Statement) -> Statement:
    """The same of what it holds."""
    match statement:
        case Block(body):
            return Block(tuple(tidied(body)))
        case For(body=body):
            return replace(statement, body=inside(body))
        case If(test, then, otherwise):
            return If(test, inside(then), None if otherwise is None else inside(otherwise))
        case Lambda(body=body) | EitherWay(body=body):
            return replace(statement, body=tuple(tidied(body)))
    return statement


# ---- `const Index i1 = row;`


def without_aliases(body: list[Statement]) -> list[Statement]:
    for position, statement in enumerate(body):
        match statement:
            case Declare("Index", name, Name(other) as value, how="const", also=(), note=""):
                rest = body[position + 1 :]
                again = {name, other} & (assigned(rest) | names_declared(rest))
                if not again:
                    return [*body[:position], *without_aliases(with_values(rest, {Name(name): value}))]
    return body


def assigned(body: Iterable[Statement]) -> set[str]:
    return {s.target.name for s in statements(body) if isinstance(s, Assign) and isinstance(s.target, Name)}


# ---- `float a[VEC]; for (v) a[v] = f(x[v]); float b[VEC]; for (v) b[v] = g(a[v]);`


def joined_loops(body: list[Statement]) -> list[Statement]:
    found: list[Statement] = []
    position = 0
    while position < len(body):
        group = group_at(body, position)
        if len(group) < 2:
            found.append(body[position])
            position += 1
            continue
        position += 2 * len(group)
        found += as_one_loop(group, body[position:])
    return found


Step = tuple[Declare, For, Expr]  # an array, the loop that fills it, and with what


def group_at(body: Sequence[Statement], position: int) -> list[Step]:
    """Arrays that begin here, one behind the other, each filled by a loop over the same elements."""
    group: list[Step] = []
    while position + 1 < len(body):
        step = step_at(body[position], body[position + 1])
        if step is None or (group and not same_loop(step[1], group[0][1])):
            break
        group.append(step)
        position += 2
    while group and not all(read_by_element(one.name, group) for one, _, _ in group):
        group.pop()
    return group


def step_at(first: Statement, second: Statement) -> Step | None:
    match first, second:
        case Declare(name=name, value=None, how="", made_of=(), refers=False), For(Declare(name=variable), body=inner, unroll=True):
            only = inner.body[0] if isinstance(inner, Block) and len(inner.body) == 1 else inner
            match only:
                case Assign(Subscript(Name(into), Name(at)), value, "=") if into == name and at == variable and len(first.shape) == 1:
                    return first, second, value
    return None


def same_loop(one: For, other: For) -> bool:
    return (one.first, one.test, one.step) == (other.first, other.test, other.step)


def read_by_element(name: str, group: Sequence[Step]) -> bool:
    """In the loops of a group."""
    return all(reads(value, Name(name)) == reads(value, place_of(name, loop)) for _, loop, value in group)


def place_of(name: str, loop: For) -> Expr:
    assert loop.first is not None
    return element(Name(name), Name(loop.first.name))


def reads(expr: Expr, part: Expr) -> int:
    return sum(one == part for one in walk(expr))


def as_one_loop(group: Sequence[Step], rest: Sequence[Statement]) -> list[Statement]:
    """What is read later stays in its array; all else is one value at a time."""
    loop = group[0][1]
    later = {part.name for expr in expressions(rest) for part in walk(expr) if isinstance(part, Name)}
    arrays, body, single = list[Statement](), list[Statement](), dict[Expr, Expr]()
    for declared, _, value in group:
        place = place_of(declared.name, loop)
        if declared.name in later:
            arrays.append(declared)
            body.append(Assign(place, value))
        else:
            body.append(const(declared.kind, declared.name, value))
            single[place] = Name(declared.name)
    return [*arrays, replace(loop, body=block(with_values(body, single)))]
