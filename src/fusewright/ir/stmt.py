"""Statements as data: what kernels are made of, printed last and once.

A body is a sequence of statements. `printed` makes lines of it; `statements` goes over all that it holds, `rewritten` changes the
expressions in it. A body of a loop or a test is one statement, a `Block` where it is to stand in braces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .cpp import AS_IT_IS, Printer, Spelling, kind_text
from .expr import Expr, Kind, Name, Operand, Unary, as_expr, both, names_in, substituted, words_of
from .expr import cost as cost_of
from .expr import words_in as words_of_expr

LONGEST_LINE = 140  # of a launcher that says in one what all variants are given


class Statement:
    __slots__ = ()

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """The expressions of the statement itself, not those of statements inside."""
        return ()

    @property
    def inner(self) -> tuple[Statement, ...]:
        return ()


@dataclass(frozen=True)
class Declare(Statement):
    """A variable, or an array of `shape`."""

    kind: Kind
    name: str
    value: Expr | None = None
    shape: tuple[Expr, ...] = ()
    how: str = ""  # const, constexpr, __shared__
    note: str = ""  # a remark behind it
    made_of: tuple[Expr, ...] = ()  # what its constructor is given, in braces
    also: tuple[tuple[str, Expr], ...] = ()  # more of the same kind
    refers: bool = False  # to an array that is there

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (*self.shape, *(() if self.value is None else (self.value,)), *self.made_of, *(value for _, value in self.also))

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, *(name for name, _ in self.also)


@dataclass(frozen=True)
class Assign(Statement):
    target: Expr
    value: Expr
    sign: str = "="

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.target, self.value


@dataclass(frozen=True)
class Do(Statement):
    """A call for what it does."""

    call: Expr

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.call,)


@dataclass(frozen=True)
class Block(Statement):
    body: tuple[Statement, ...]

    @property
    def inner(self) -> tuple[Statement, ...]:
        return self.body


@dataclass(frozen=True)
class If(Statement):
    test: Expr
    then: Statement
    otherwise: Statement | None = None

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.test,)

    @property
    def inner(self) -> tuple[Statement, ...]:
        return (self.then,) if self.otherwise is None else (self.then, self.otherwise)


@dataclass(frozen=True)
class For(Statement):
    first: Declare | None
    test: Expr
    step: Assign | Do
    body: Statement
    unroll: bool | int = False  # or by how many

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.test,)

    @property
    def inner(self) -> tuple[Statement, ...]:
        return (*(() if self.first is None else (self.first,)), self.step, self.body)


@dataclass(frozen=True)
class Return(Statement):
    value: Expr | None = None

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return () if self.value is None else (self.value,)


@dataclass(frozen=True)
class Continue(Statement):
    """Go on with the next step of a loop."""


@dataclass(frozen=True)
class EitherWay(Statement):
    """Statements that ask `holds` at every step; not at all where `whole` says that every answer is yes: always, if it is empty."""

    name: str
    whole: tuple[Expr, ...]
    body: tuple[Statement, ...]

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.whole

    @property
    def inner(self) -> tuple[Statement, ...]:
        return self.body


@dataclass(frozen=True)
class Lambda(Statement):
    """A function inside a kernel, which sees all that is declared before it. What of `auto` it is given may be a number of its type."""

    name: str
    parameters: tuple[tuple[Kind, str], ...]
    body: tuple[Statement, ...]

    @property
    def inner(self) -> tuple[Statement, ...]:
        return self.body


@dataclass(frozen=True)
class Launch(Statement):
    """A kernel on a grid of blocks."""

    kernel: str
    types: tuple[str, ...]
    grid: Expr
    block: Expr
    arguments: tuple[Expr, ...]

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.grid, self.block, *self.arguments


@dataclass(frozen=True)
class Variant:
    """Of a kernel: its template's arguments, on what grid, and when it is taken: always, where nothing is asked."""

    types: tuple[str, ...]
    grid: Expr
    test: Expr | None = None


@dataclass(frozen=True)
class LaunchOneOf(Statement):
    """The first of a kernel's variants whose test holds. What all are given is said once."""

    kernel: str
    variants: tuple[Variant, ...]
    block: Expr
    arguments: tuple[Expr, ...]

    @property
    def exprs(self) -> tuple[Expr, ...]:
        asked = [variant.test for variant in self.variants if variant.test is not None]
        return *(variant.grid for variant in self.variants), *asked, self.block, *self.arguments


@dataclass(frozen=True)
class Verbatim(Statement):
    """Fixed lines of a template, which are printed and nothing else; `calls` are the words in them by which helpers are called."""

    lines: tuple[str, ...]
    calls: frozenset[str] = frozenset()


# ---- making statements


def const(kind: Kind, name: str, value: Operand, note: str = "") -> Declare:
    return Declare(kind, name, as_expr(value), how="const", note=note)


def array(kind: Kind, name: str, *shape: Operand, how: str = "", note: str = "") -> Declare:
    return Declare(kind, name, shape=tuple(map(as_expr, shape)), how=how, note=note)


def block(body: Iterable[Statement]) -> Block:
    return Block(tuple(body))


def counted(variable: str, count: Operand, body: Statement | Sequence[Statement], unroll: bool | int = True, step: int = 1) -> For:
    """A loop over as many; of several statements in braces."""
    inner = body if isinstance(body, Statement) else block(body)
    here = Name(variable)
    further = Do(Unary("++", here)) if step == 1 else Assign(here, as_expr(step), "+=")
    return For(Declare("int", variable, as_expr(0)), here < count, further, inner, unroll)


def when(tests: Sequence[Expr], statement: Statement) -> Statement:
    """If all of these hold, of which there may be none."""
    return If(both(*tests), statement) if tests else statement


# ---- asking statements


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """All of them, those inside others too."""
    for statement in body:
        yield statement
        yield from statements(statement.inner)


def expressions(body: Iterable[Statement]) -> Iterator[Expr]:
    for statement in statements(body):
        yield from statement.exprs


def names_read(body: Iterable[Statement]) -> set[str]:
    """Names that its expressions hold; those that are assigned too."""
    return set().union(*map(names_in, expressions(body)))


def names_declared(body: Iterable[Statement]) -> set[str]:
    return {name for statement in statements(body) if isinstance(statement, Declare) for name in statement.names}


def words(body: Iterable[Statement]) -> set[str]:
    """All that it names: values, functions, types. Device helpers are called by these."""
    body = list(body)
    every = list(statements(body))
    kinds = [words_of(statement.kind) for statement in every if isinstance(statement, Declare)]
    said = [statement.calls for statement in every if isinstance(statement, Verbatim)]
    return set().union(*kinds, *said, *map(words_of_expr, expressions(body)))


def cost(body: Iterable[Statement]) -> int:
    """Operators and calls that it takes."""
    return sum(map(cost_of, expressions(body)))


def rewritten(body: Iterable[Statement], change: Callable[[Expr], Expr]) -> list[Statement]:
    """With each of its expressions changed."""
    return [_rewritten(statement, change) for statement in body]


def with_values(body: Iterable[Statement], values: Mapping[Expr, Expr]) -> list[Statement]:
    """With values in the place of others."""
    return rewritten(body, lambda expr: substituted(expr, values))


def _rewritten(statement: Statement, change: Callable[[Expr], Expr]) -> Statement:
    def inside(one: Statement) -> Statement:
        return _rewritten(one, change)

    match statement:
        case Declare():
            value = None if statement.value is None else change(statement.value)
            also = tuple((name, change(other)) for name, other in statement.also)
            made_of = tuple(map(change, statement.made_of))
            return replace(statement, value=value, shape=tuple(map(change, statement.shape)), made_of=made_of, also=also)
        case Assign(target, value):
            return replace(statement, target=change(target), value=change(value))
        case Do(call):
            return Do(change(call))
        case Block(body):
            return Block(tuple(map(inside, body)))
        case If(test, then, otherwise):
            return If(change(test), inside(then), None if otherwise is None else inside(otherwise))
        case For(first, test, step, body):
            begun, further = None if first is None else inside(first), inside(step)
            assert isinstance(begun, Declare | None) and isinstance(further, Assign | Do)
            return replace(statement, first=begun, test=change(test), step=further, body=inside(body))
        case Return(value):
            return Return(None if value is None else change(value))
        case Launch(_, _, grid, of_each, arguments):
            return replace(statement, grid=change(grid), block=change(of_each), arguments=tuple(map(change, arguments)))
        case LaunchOneOf(_, variants, of_each, arguments):
            tested = [replace(v, grid=change(v.grid), test=None if v.test is None else change(v.test)) for v in variants]
            return replace(statement, variants=tuple(tested), block=change(of_each), arguments=tuple(map(change, arguments)))
        case EitherWay(name, whole, body):
            return EitherWay(name, tuple(map(change, whole)), tuple(map(inside, body)))
        case Lambda(body=body):
            return replace(statement, body=tuple(map(inside, body)))
    return statement


def renamed(body: Iterable[Statement], names: Mapping[str, str]) -> list[Statement]:
    """With other names for some of what it reads and declares."""
    values: dict[Expr, Expr] = {Name(old): Name(new) for old, new in names.items()}
    return [_declared_as(statement, names) for statement in with_values(body, values)]


def _declared_as(statement: Statement, names: Mapping[str, str]) -> Statement:
    def inside(one: Statement) -> Statement:
        return _declared_as(one, names)

    match statement:
        case Declare(name=name, also=also):
            return replace(statement, name=names.get(name, name), also=tuple((names.get(other, other), v) for other, v in also))
        case Block(body):
            return Block(tuple(map(inside, body)))
        case If(test, then, otherwise):
            return If(test, inside(then), None if otherwise is None else inside(otherwise))
        case For(first, body=body):
            begun = None if first is None else inside(first)
            assert isinstance(begun, Declare | None)
            return replace(statement, first=begun, body=inside(body))
        case EitherWay(name, whole, body):
            return EitherWay(names.get(name, name), whole, tuple(map(inside, body)))
        case Lambda(name, parameters, body):
            parameters = tuple((kind, names.get(given, given)) for kind, given in parameters)
            return Lambda(names.get(name, name), parameters, tuple(map(inside, body)))
    return statement


# ---- as C++, the last pass


def printed(body: Iterable[Statement], depth: int = 0, spelling: Spelling = AS_IT_IS) -> list[str]:
    """As lines, indented by so many steps."""
    printer = StatementPrinter(Printer((), spelling))
    for statement in body:
        printer.add(statement, depth)
    return printer.lines


@dataclass
class StatementPrinter:
    printer: Printer
    lines: list[str] = field(default_factory=list)

    def add(self, statement: Statement, depth: int, lead: str = "") -> None:
        """Adds its lines; `lead` stands in front of the first, in the same line."""
        self.printer.spelling.enter(statement)
        match statement:
            case Block(body):
                self.line(depth, f"{lead}{{")
                self.body(body, depth)
                self.line(depth, "}")
            case If(test, then, otherwise):
                self.add(then, depth, f"{lead}if ({self.text(test)}) ")
                if otherwise is not None:
                    self.add(otherwise, depth, "else ")
            case For(first, test, step, inner):
                if statement.unroll:
                    assert not lead, "a loop that is unrolled has lines of its own"
                    count = "" if statement.unroll is True else f" {statement.unroll}"
                    self.lines.append(f"#pragma unroll{count}")
                begin = "" if first is None else self.plain(first)
                head = f"{lead}for ({begin}; {self.text(test)}; {self.plain(step)})"
                match inner:
                    case Block((For() as only,)):
                        self.line(depth, head)
                        self.add(only, depth + 1)
                    case Block(((Assign() | Do()) as only,)) if len(head) + len(self.plain(only)) + 2 * depth < LONGEST_LINE:
                        self.add(only, depth, f"{head} ")
                    case _:
                        self.add(inner, depth, f"{head} ")
            case EitherWay():
                self.either_way(statement, depth)
            case Lambda(name, parameters, body):
                given = ", ".join(f"{kind_text(kind)} {self.printer.spelling.name(word)}" for kind, word in parameters)
                self.line(depth, f"const auto {self.printer.spelling.name(name)} = [&]({given}) {{")
                self.body(body, depth)
                self.line(depth, "};")
            case LaunchOneOf():
                self.launch_one_of(statement, depth)
            case Verbatim(lines):
                for line in lines:
                    self.line(depth, line)
            case _:
                note = f"  // {statement.note}" if isinstance(statement, Declare) and statement.note else ""
                self.line(depth, f"{lead}{self.plain(statement)};{note}")

    def body(self, body: Iterable[Statement], depth: int) -> None:
        for statement in body:
            self.add(statement, depth + 1)

    def either_way(self, statement: EitherWay, depth: int) -> None:
        name = self.printer.spelling.name(statement.name)
        self.line(depth, f"auto {name} = [&](auto holds) {{")
        self.body(statement.body, depth)
        self.line(depth, "};")
        sure = f"{name}([](bool) {{ return true; }});"
        if statement.whole:
            self.line(depth, f"if ({self.text(both(*statement.whole))}) {sure}")
            self.line(depth, f"else {name}([](bool test) {{ return test; }});  // at an edge")
        else:
            self.line(depth, sure)

    def launch_one_of(self, it: LaunchOneOf, depth: int) -> None:
        """A launch of whichever variant, then the choice. The host target knows it by this form (`host/transform.py`)."""
        one_grid = len({variant.grid for variant in it.variants}) == 1
        grid = self.text(it.variants[0].grid) if one_grid else "grid"
        head = f"const auto launch = [&](auto variant{'' if one_grid else ', dim3 grid'}) {{"
        call = f"variant{self.geometry(grid, it.block)}({self.printer.several(it.arguments)});"
        if len(head) + len(call) <= LONGEST_LINE:
            self.line(depth, f"{head} {call} }};")
        else:
            self.line(depth, head)
            self.line(depth + 1, call)
            self.line(depth, "};")
        for i, variant in enumerate(it.variants):
            asked = "" if variant.test is None else f"if ({self.text(variant.test)}) "
            name = f"{self.printer.spelling.name(it.kernel)}<{', '.join(variant.types)}>"
            where = "" if one_grid else f", {self.text(variant.grid)}"
            self.line(depth, f"{'else ' if i else ''}{asked}launch({name}{where});")

    def geometry(self, grid: str, block: Expr) -> str:
        return f"<<<{grid}, {self.text(block)}, 0, (cudaStream_t)stream>>>"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def text(self, expr: Expr) -> str:
        return self.printer.text(expr)

    def plain(self, statement: Statement) -> str:
        """A statement of one line, without its end."""
        match statement:
            case Declare():
                return self.declaration(statement)
            case Assign(target, value, sign):
                return f"{self.text(target)} {sign} {self.text(value)}"
            case Do(call):
                return self.text(call)
            case Return(value):
                return "return" if value is None else f"return {self.text(value)}"
            case Continue():
                return "continue"
            case Launch(kernel, types, grid, block_, arguments):
                name = self.printer.spelling.name(kernel) + (f"<{', '.join(types)}>" if types else "")
                return f"{name}{self.geometry(self.text(grid), block_)}({self.printer.several(arguments)})"
        raise AssertionError(f"{statement} is no statement of one line")

    def declaration(self, it: Declare) -> str:
        name, places = self.printer.spelling.name(it.name), "".join(f"[{self.text(size)}]" for size in it.shape)
        kind = kind_text(it.kind) if not it.how else f"{it.how} {kind_text(it.kind)}"
        text = f"{kind}(&{name}){places}" if it.refers else f"{kind} {name}{places}"
        if it.value is not None:
            text += f" = {self.text(it.value)}"
        if it.made_of:
            text += f"{{{self.printer.several(it.made_of)}}}"
        return text + "".join(f", {self.printer.spelling.name(name)} = {self.text(value)}" for name, value in it.also)
