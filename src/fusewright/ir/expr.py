"""Expressions as data: what one element of a value is computed by. Every pass reads the tree; text is made of it last, and once.

An operator's meaning is a Python function on expressions, written with Python's own operators:

    lambda x: x * fn.smaller(fn.larger(x + 3.0, 0.0), 6.0) * (1.0 / 6.0)

Whole numbers are C++'s int, floats are float, or double where the operator computes in double; `number` has the type that it is told.
`==` compares trees; the C++ comparison is `equal`. To ask something new of expressions, write one function over `walk`.

Kernels are written of the same expressions, of named values, elements of arrays and calls; `stmt.py` has their statements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

Scalar = bool | int | float


class Expr:
    """One value. Subclasses say how it is made; their operands are `parts`."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Expr, ...]:
        return ()

    def __add__(self, other: Operand) -> Expr:
        return Binary("+", self, as_expr(other))

    def __radd__(self, other: Operand) -> Expr:
        return Binary("+", as_expr(other), self)

    def __sub__(self, other: Operand) -> Expr:
        return Binary("-", self, as_expr(other))

    def __rsub__(self, other: Operand) -> Expr:
        return Binary("-", as_expr(other), self)

    def __mul__(self, other: Operand) -> Expr:
        return Binary("*", self, as_expr(other))

    def __rmul__(self, other: Operand) -> Expr:
        return Binary("*", as_expr(other), self)

    def __truediv__(self, other: Operand) -> Expr:
        """C++'s quotient: of whole numbers it is whole."""
        return Binary("/", self, as_expr(other))

    def __rtruediv__(self, other: Operand) -> Expr:
        return Binary("/", as_expr(other), self)

    def __mod__(self, other: Operand) -> Expr:
        return Binary("%", self, as_expr(other))

    def __lt__(self, other: Operand) -> Expr:
        return Binary("<", self, as_expr(other))

    def __le__(self, other: Operand) -> Expr:
        return Binary("<=", self, as_expr(other))

    def __gt__(self, other: Operand) -> Expr:
        return Binary(">", self, as_expr(other))

    def __ge__(self, other: Operand) -> Expr:
        return Binary(">=", self, as_expr(other))

    def __and__(self, other: Operand) -> Expr:
        return Binary("&", self, as_expr(other))

    def __or__(self, other: Operand) -> Expr:
        return Binary("|", self, as_expr(other))

    def __xor__(self, other: Operand) -> Expr:
        return Binary("^", self, as_expr(other))

    def __neg__(self) -> Expr:
        return Unary("-", self)

    def __invert__(self) -> Expr:
        return Unary("~", self)


Operand = Expr | Scalar


@dataclass(frozen=True, slots=True)
class Arg(Expr):
    """The operand with this number."""

    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Number(Expr):
    """A constant of a C++ type. A float is a double where the whole is computed in double."""

    value: Scalar
    kind: str

    def __eq__(self, other: object) -> bool:
        """Zeros of either sign differ, a NaN is itself."""
        return isinstance(other, Number) and (self.kind, repr(self.value)) == (other.kind, repr(other.value))

    def __hash__(self) -> int:
        return hash((self.kind, repr(self.value)))

    def __neg__(self) -> Expr:
        return Number(-self.value, self.kind)


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    sign: str
    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    sign: str
    left: Expr
    right: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """One of two; only that one is computed."""

    test: Expr
    then: Expr
    otherwise: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.test, self.then, self.otherwise


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    kind: Kind
    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class Field(Expr):
    """A part of a value that has several."""

    of: Expr
    name: str

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.of,)


@dataclass(frozen=True, slots=True)
class Name(Expr):
    """A named value: a variable, a parameter, a constant."""

    name: str


@dataclass(frozen=True, slots=True)
class Subscript(Expr):
    """An element of an array, or of what a pointer leads to."""

    of: Expr
    at: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.of, self.at


@dataclass(frozen=True, slots=True)
class Grouped(Expr):
    """In parentheses where nothing asks for them, if it stands alone: what it is put into may be text."""

    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.operand,)


@dataclass(frozen=True, slots=True)
class AllOf(Expr):
    """Whether several tests hold, all of them asked: with `&&`, ptxas branches around each."""

    tests: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.tests


@dataclass(frozen=True, slots=True)
class Braced(Expr):
    """Values in braces, of which a struct is made."""

    operands: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.operands


@dataclass(frozen=True, slots=True)
class Template:
    """A C++ type with arguments."""

    name: str
    types: tuple[Kind, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """A C++ pointer, as casts name it."""

    to: Kind
    const: bool = False


Kind = str | Template | Pointer  # a C++ type, or a number in a type's place


@dataclass(frozen=True, slots=True)
class Function:
    """A device function. What differs by precision is said here, so that no one looks for it in text."""

    name: str  # in float, or for every type
    double: str = ""  # in double, where that is another
    fast: str = ""  # with the special-function unit's own instructions: off by 1e-5 at most
    types: tuple[Kind, ...] = ()  # what the template is told

    def __call__(self, *operands: Operand) -> Expr:
        return Call(self, tuple(map(as_expr, operands)))

    def of(self, *types: Kind | int) -> Function:
        """The template with these arguments."""
        return replace(self, types=tuple(str(t) if isinstance(t, int) else t for t in types))


@dataclass(frozen=True, slots=True)
class Call(Expr):
    function: Function
    operands: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.operands


@dataclass(frozen=True, slots=True)
class Method(Expr):
    """A function of a value that has several parts."""

    of: Expr
    name: str
    operands: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.of, *self.operands


# ---- making expressions


def as_expr(value: Operand) -> Expr:
    if isinstance(value, Expr):
        return value
    return Number(value, "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float")


def of_operands(meaning: Callable[..., Operand], count: int) -> Expr:
    """What a function of so many operands computes."""
    return as_expr(meaning(*map(Arg, range(count))))


def quotient(a: Operand, b: Operand) -> Expr:
    return as_expr(a) / b


def select(test: Operand, then: Operand, otherwise: Operand) -> Expr:
    return Select(as_expr(test), as_expr(then), as_expr(otherwise))


def first_of(choices: Sequence[tuple[Operand, Operand]], otherwise: Operand) -> Expr:
    """The value of the first test that holds."""
    found = as_expr(otherwise)
    for test, value in reversed(choices):
        found = select(test, value, found)
    return found


def equal(a: Operand, b: Operand) -> Expr:
    return Binary("==", as_expr(a), as_expr(b))


def differs(a: Operand, b: Operand) -> Expr:
    return Binary("!=", as_expr(a), as_expr(b))


def both(*tests: Expr) -> Expr:
    """All of several truths, asked in order; with none, true."""
    return joined("&&", tests) if tests else Number(True, "bool")


def either(*tests: Expr) -> Expr:
    return joined("||", tests)


def negated(test: Expr) -> Expr:
    return Unary("!", test)


def joined(sign: str, operands: Sequence[Expr]) -> Expr:
    found = operands[0]
    for operand in operands[1:]:
        found = Binary(sign, found, operand)
    return found


def method(of: Expr, name: str, *operands: Operand) -> Expr:
    return Method(of, name, tuple(map(as_expr, operands)))


def element(of: Expr, *places: Operand) -> Expr:
    """Of an array of as many dimensions."""
    for place in places:
        of = Subscript(of, as_expr(place))
    return of


def address(of: Expr) -> Expr:
    return Unary("&", of)


def grouped(expr: Expr) -> Expr:
    """In parentheses, unless a reader takes it for one anyway."""
    return expr if is_atom(expr) else Grouped(expr)


def is_atom(expr: Expr) -> bool:
    """A name, a number, an element at such a place."""
    match expr:
        case Name():
            return True
        case Number(value, "int"):
            return value >= 0
        case Subscript(of, at):
            return is_atom(of) and is_atom(at)
    return False


def signed_sum(terms: Sequence[tuple[bool, Expr]]) -> Expr:
    """Terms in their order, those marked taken away."""
    (taken_away, found), *others = terms
    if taken_away:
        found = negated_term(found)
    for taken_away, term in others:
        found = Binary("-" if taken_away else "+", found, term)
    return found


def negated_term(term: Expr) -> Expr:
    """A product with the sign at its first factor, where it is read."""
    if isinstance(term, Binary) and term.sign in ("*", "/", "%"):
        return Binary(term.sign, negated_term(term.left), term.right)
    return Unary("-", term)


def total(operands: Sequence[Expr]) -> Expr:
    """Added from the first on."""
    return joined("+", operands)


def product(operands: Sequence[Expr]) -> Expr:
    return joined("*", operands)


# ---- asking expressions


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all that it is made of."""
    yield expr
    for part in expr.parts:
        yield from walk(part)


def is_arithmetic(expr: Expr) -> bool:
    """Sums, differences, products, quotients of operands and finite numbers: NaN comes out wherever one goes in."""
    return all(
        isinstance(part, Arg)
        or (isinstance(part, Number) and math.isfinite(part.value))
        or (isinstance(part, Binary) and part.sign in "+-*/")
        or (isinstance(part, Unary) and part.sign == "-")
        for part in walk(expr)
    )


def uses(expr: Expr, index: int) -> int:
    """How often it reads an operand."""
    return sum(part == Arg(index) for part in walk(expr))


def is_constant(expr: Expr) -> bool:
    return not any(isinstance(part, Arg) for part in walk(expr))


def changed(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The tree with `change` made to each of its parts, innermost first."""

    def each(operands: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(changed(operand, change) for operand in operands)

    match expr:
        case Unary(sign, operand):
            expr = Unary(sign, changed(operand, change))
        case Binary(sign, left, right):
            expr = Binary(sign, changed(left, change), changed(right, change))
        case Select(test, then, otherwise):
            expr = Select(changed(test, change), changed(then, change), changed(otherwise, change))
        case Cast(kind, operand):
            expr = Cast(kind, changed(operand, change))
        case Field(of, name):
            expr = Field(changed(of, change), name)
        case Subscript(of, at):
            expr = Subscript(changed(of, change), changed(at, change))
        case Grouped(operand):
            expr = Grouped(changed(operand, change))
        case AllOf(tests):
            expr = AllOf(each(tests))
        case Braced(operands):
            expr = Braced(each(operands))
        case Call(function, operands):
            expr = Call(function, each(operands))
        case Method(of, name, operands):
            expr = Method(changed(of, change), name, each(operands))
    return change(expr)


def substituted(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """With values in the place of others: of operands (`Arg`), of names."""
    return changed(expr, lambda part: values.get(part, part))


def applied(expr: Expr, operands: Sequence[Expr]) -> Expr:
    """An operator's expression of these operands."""
    return substituted(expr, {Arg(i): operand for i, operand in enumerate(operands)})


def in_double(expr: Expr) -> Expr:
    """Computed in double precision."""

    def wider(part: Expr) -> Expr:
        match part:
            case Number(value, "float"):
                return Number(value, "double")
            case Call(function, operands) if function.double:
                return Call(Function(function.double), operands)
        return part

    return changed(expr, wider)


def with_fast_functions(expr: Expr) -> Expr:
    """By the special-function unit, where a function has such a form."""

    def faster(part: Expr) -> Expr:
        match part:
            case Call(function, operands) if function.fast:
                return Call(Function(function.fast), operands)
        return part

    return changed(expr, faster)


def names_in(expr: Expr) -> set[str]:
    """The names that it reads."""
    return {part.name for part in walk(expr) if isinstance(part, Name)}


def words_in(expr: Expr) -> set[str]:
    """All that it names: values, functions, types. Device helpers are called by these."""
    found = names_in(expr)
    for part in walk(expr):
        match part:
            case Call(function):
                found |= {function.name}.union(*map(words_of, function.types))
            case Cast(kind):
                found |= words_of(kind)
    return found


def words_of(kind: Kind) -> set[str]:
    match kind:
        case Template(name, types):
            return {name}.union(*map(words_of, types))
        case Pointer(to):
            return words_of(to)
        case _:
            return {kind}


def cost(expr: Expr) -> int:
    """Operators and calls that it takes."""
    return sum(isinstance(part, (Unary, Binary, Select, Call, Method)) for part in walk(expr))


def has_fast_functions(expr: Expr) -> bool:
    return any(isinstance(part, Call) and part.function.fast for part in walk(expr))
