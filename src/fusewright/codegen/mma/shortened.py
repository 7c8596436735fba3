"""Fewer instructions an element at the end of a convolution: what depends on the channel alone is worked out once a block,
factors and shifts are joined, and a polynomial of tanh becomes one of the reciprocal that tanh is made of.

The operands are sums of TF32 products: what is rounded otherwise here is far below what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...ir import functions as fn
from ...ir.cpp import BINDS, as_float
from ...ir.expr import (
    Binary,
    Call,
    Expr,
    Function,
    Grouped,
    Name,
    Number,
    Subscript,
    changed,
    element,
    names_in,
    substituted,
    walk,
    with_fast_functions,
)
from ...ir.stmt import Declare, Statement, const, expressions, names_read, rewritten, with_values
from .conv_spec import Table

# Shorter forms of functions: of an operand that has a factor in it, by a reciprocal, by the special-function unit.
TANH_OF, EXP2_FAST, TANH_PART = Function("tanh_of"), Function("exp2_fast"), Function("tanh_part")
SIN_FAST, COS_FAST, DIV_FAST = Function("sin_fast"), Function("cos_fast"), Function("div_fast")
SHORT_FORMS = (TANH_OF, EXP2_FAST, TANH_PART, SIN_FAST, COS_FAST, DIV_FAST)
TANH_FACTOR, LOG2_E = Name("TANH_FACTOR"), Name("LOG2_E")
TANH_FAST = fn.tanh.fast
# Functions that begin with a factor: what is left of each, and the factor.
FACTORED = {TANH_FAST: (TANH_OF, TANH_FACTOR), fn.exp.fast: (EXP2_FAST, LOG2_E)}
# What the compiler makes of these in straight code for each element does not fit the instruction cache: on an H200 a transposed
# convolution with x + sin(a x)^2 / a behind it took 0.67 ms, alone 0.17.
QUICK = {fn.sin: SIN_FAST, fn.cos: COS_FAST}


@dataclass(frozen=True)
class Shortened:
    """Statements for one element and its final expression; `kept` are those of sample and channel that stay in front of them."""

    element: list[Statement]
    final: Expr
    kept: list[Statement]
    tables: tuple[Table, ...] = ()
    left_out: float = 0.0  # a constant that the final expression lacks


def shortened(
    outer: Sequence[Statement], inner: Sequence[Statement], final: Expr, *, hoist: bool, exact: bool, may_shift: bool
) -> Shortened:
    """`outer` depends on sample and channel only: with `hoist` it is worked out once a block and kept in shared memory."""
    outer, inner, left_out = list(outer), list(inner), 0.0
    if not exact:
        inner = rewritten([quick_quotient(statement) for statement in inner], quick)
        final = quick(final)
    if not hoist:
        return Shortened(inner, final, outer if exact else rewritten(outer, with_fast_functions))
    if not exact:
        outer, inner, final = joined_constants(outer, inner, final)
        inner, left_out = of_reciprocals(inner, final, may_shift)
    read = names_read(inner) | names_in(final)
    wanted = [name for name in declarations(outer) if name in read]
    tables = [Table(f"{name}of_", Name(name), tuple(outer) if i == 0 else ()) for i, name in enumerate(wanted)]
    kept: dict[Expr, Expr] = {Name(name): element(Name(f"{name}of_"), Name("c") - Name("channel0")) for name in wanted}
    return Shortened(with_values(inner, kept), substituted(final, kept), [], tuple(tables), left_out)


def quick(expr: Expr) -> Expr:
    """Functions as exact as the operands are."""

    def quicker(part: Expr) -> Expr:
        match part:
            case Call(function, operands) if function in QUICK:
                return QUICK[function](*operands)
        return part

    return with_fast_functions(changed(expr, quicker))


def quick_quotient(statement: Statement) -> Statement:
    """A quotient as exact as the operands are, where it is all that a statement computes."""
    match statement:
        case Declare("float", value=Binary("/", Name() | Number(kind="float") as above, below)) if is_plain(below):
            divisor = Grouped(below) if isinstance(below, Binary) else below
            return replace(statement, value=DIV_FAST(above, divisor))
    return statement


def is_plain(below: Expr) -> bool:
    """A divisor that is a value, or a sum or product of values. What is divided by a constant is multiplied by the compiler."""
    match below:
        case Name():
            return True
        case Number(value, "float"):
            return value < 0
        case Binary():
            return has_no_parentheses(below)
    return False


def has_no_parentheses(expr: Expr) -> bool:
    match expr:
        case Name():
            return True
        case Number(value):
            return value >= 0
        case Binary(sign, left, right):
            holds = binds(left) >= BINDS[sign] and binds(right) > BINDS[sign]
            return holds and has_no_parentheses(left) and has_no_parentheses(right)
        case Subscript(of, at):
            return has_no_parentheses(of) and has_no_parentheses(at)
    return False


def binds(expr: Expr) -> int:
    return BINDS[expr.sign] if isinstance(expr, Binary) else max(BINDS.values()) + 1


def declarations(body: Iterable[Statement]) -> dict[str, Expr]:
    """The floats that it names."""
    return {s.name: s.value for s in body if isinstance(s, Declare) and s.kind == "float" and s.how == "const" and s.value is not None}


def joined_constants(
    outer: list[Statement], inner: list[Statement], final: Expr
) -> tuple[list[Statement], list[Statement], Expr]:
    """(x - mean) * scale + bias as x * scale + shift, and the factor of a function that alone uses it joined to both: one
    instruction an element each. What is lost where mean and bias nearly cancel is less than the rounding of x, a sum of TF32
    products."""
    outer, inner = list(outer), list(inner)
    for k, statement in enumerate(inner):
        found = normalised(statement)
        if found is None or not {part.name for part in found[2:] if part is not None} <= declarations(outer).keys():
            continue
        name, x, mean, scale, bias = found
        shift, steep, start = (Name(f"{name}{what}_") for what in ("shift", "steep", "start"))
        outer.append(const("float", shift.name, -mean * scale if bias is None else bias - mean * scale))
        function = only_function_of(name, [*expressions(inner[k + 1 :]), final])
        if function in FACTORED:
            rest, factor = FACTORED[function]
            outer += [const("float", steep.name, factor * scale), const("float", start.name, factor * shift)]
            inner[k] = const("float", name, x * steep + start)
            shorter: dict[Expr, Expr] = {Function(function)(Name(name)): rest(Name(name))}
            inner, final = [*inner[: k + 1], *with_values(inner[k + 1 :], shorter)], substituted(final, shorter)
        else:
            inner[k] = const("float", name, x * scale + shift)
    return outer, inner, final


def normalised(statement: Statement) -> tuple[str, Name, Name, Name, Name | None] | None:
    """(name, x, mean, scale, bias) where it is name = (x - mean) * scale, with + bias or without."""
    match statement:
        case Declare("float", name, Binary("*", Binary("-", Name() as x, Name() as mean), Name() as scale)):
            return name, x, mean, scale, None
        case Declare(
            "float", name, Binary("+", Binary("*", Binary("-", Name() as x, Name() as mean), Name() as scale), Name() as bias)
        ):
            return name, x, mean, scale, bias
    return None


def only_function_of(name: str, exprs: Iterable[Expr]) -> str:
    """The function that alone reads a value, which is all that it is given; nothing where there is no such."""
    parts = [part for expr in exprs for part in walk(expr)]
    calls = [part.function.name for part in parts if isinstance(part, Call) and part.operands == (Name(name),)]
    return calls[0] if parts.count(Name(name)) == 1 and len(calls) == 1 else ""


Quadratic = tuple[float, float, float]  # coefficients, the constant first


def of_reciprocals(inner: Sequence[Statement], final: Expr, may_shift: bool) -> tuple[list[Statement], float]:
    """tanh x = 1 - 2r where r = 1 / (1 + exp(2x)), so a polynomial of tanh x is one of r, with an instruction less. Its constant is
    left out where the final sum may lack it, which saves one more; the second result says what was."""
    left_out, now = 0.0, list(inner)
    for statement in inner:
        operand = operand_of_tanh(statement)
        if operand is None:
            continue
        assert isinstance(statement, Declare)
        tanh, k = statement.name, now.index(statement)
        known: dict[str, Quadratic] = {tanh: (0.0, 1.0, 0.0)}
        others: list[Statement] = []
        for later in now[k + 1 :]:
            found = quadratic(later, known)
            if found is None:
                others.append(later)
            else:
                known[found[0]] = found[1]
        parts = [part for expr in (*expressions(others), final) for part in walk(expr)]
        uses = [part.name for part in parts if isinstance(part, Name) and part.name in known]
        if len(uses) != 1 or uses[0] == tanh or len(known) < 3:
            continue  # tanh itself is wanted, or several polynomials of it, or one that is as short
        (name,), r = uses, Name(f"{tanh}r_")
        c0, c1, c2 = known[name]
        constant, first, second = c0 + c1 + c2, -2 * c1 - 4 * c2, 4 * c2  # with 1 - 2r in the place of tanh
        if may_shift and (final == Name(name) or any(adds_to(other, final, Name(name)) for other in others)):
            left_out, constant = left_out + constant, 0.0
        slope = number(second) * r + number(first) if second else number(first)
        made = r * slope + number(constant) if constant else r * slope
        now = [*now[:k], const("float", r.name, TANH_PART(operand)), const("float", name, made), *others]
    return now, left_out


def operand_of_tanh(statement: Statement) -> Expr | None:
    """Where it names a tanh: what that is of, with its factor."""
    match statement:
        case Declare("float", value=Call(function, (operand,))) if function == TANH_OF:
            return operand
        case Declare("float", value=Call(function, (operand,))) if function.name == TANH_FAST:
            return TANH_FACTOR * operand
    return None


def adds_to(statement: Statement, final: Expr, value: Name) -> bool:
    """It names the final sum, of the value and another."""
    match statement:
        case Declare("float", name, Binary("+", Name() as a, Name() as b)):
            return final == Name(name) and value in (a, b)
    return False


def quadratic(statement: Statement, known: Mapping[str, Quadratic]) -> tuple[str, Quadratic] | None:
    """The name that a statement declares and its coefficients, where it is made of what is `known`."""
    match statement:
        case Declare("float", made, Binary("+" | "-" | "*" as sign, left, right)):
            a, b = coefficients(left, known), coefficients(right, known)
        case _:
            return None
    if a is None or b is None:
        return None
    if sign != "*":
        by = 1.0 if sign == "+" else -1.0
        return made, (a[0] + by * b[0], a[1] + by * b[1], a[2] + by * b[2])
    if a[1] * b[2] or a[2] * b[1] or a[2] * b[2]:
        return None  # of a higher degree
    return made, (a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[0] * b[2] + a[1] * b[1] + a[2] * b[0])


def coefficients(side: Expr, known: Mapping[str, Quadratic]) -> Quadratic | None:
    match side:
        case Name(name):
            return known.get(name)
        case Number(value, "float"):
            return as_float(float(value)), 0.0, 0.0
    return None


def number(value: float) -> Number:
    return Number(value, "float")
