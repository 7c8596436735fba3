"""Fewer instructions an element at the end of a convolution: what depends on the channel alone is worked out once a block,
factors and shifts are joined, and a polynomial of tanh becomes one of the reciprocal that tanh is made of.

The operands are sums of TF32 products: what is rounded otherwise here is far below what is known of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from ..prims import literal
from . import text
from .conv_spec import Table

# Functions that begin with a factor: what is left of each, and the factor.
FACTORED = {"tanh_fast": ("tanh_of", "TANH_FACTOR"), "exp_fast": ("exp2_fast", "LOG2_E")}
# What the compiler makes of these in straight code for each element does not fit the instruction cache: on an H200 a transposed
# convolution with x + sin(a x)^2 / a behind it took 0.67 ms, alone 0.17.
QUICK = {"sinf": "sin_fast", "cosf": "cos_fast"}
NUMBER = r"\(?(-?\d+\.\d*(?:e[-+]?\d+)?)f\)?"


@dataclass(frozen=True)
class Shortened:
    """Statements for one element and its final expression; `kept` are those of sample and channel that stay in front of them."""

    element: list[str]
    final: str
    kept: list[str]
    tables: tuple[Table, ...] = ()
    left_out: float = 0.0  # a constant that the final expression lacks


def shortened(outer: list[str], element: list[str], final: str, *, hoist: bool, exact: bool, may_shift: bool) -> Shortened:
    """`outer` depends on sample and channel only: with `hoist` it is worked out once a block and kept in shared memory."""
    left_out = 0.0
    if not exact:
        *element, final = map(text.with_fast_functions, map(quick, [*element, final]))
    if not hoist:
        return Shortened(element, final, outer if exact else [text.with_fast_functions(line) for line in outer])
    if not exact:
        outer, element, final = joined_constants(outer, element, final)
        element, left_out = of_reciprocals(element, final, may_shift)
    declared = declarations(outer)
    text_ = "\n".join([*element, final])
    wanted = [name for name in declared if re.search(rf"\b{name}\b", text_)]
    tables = []
    for i, name in enumerate(wanted):
        tables.append(Table(f"{name}of_", name, tuple(outer) if i == 0 else ()))
        change = (rf"\b{name}\b", f"{name}of_[c - channel0]")
        element = [re.sub(*change, line) for line in element]
        final = re.sub(*change, final)
    return Shortened(element, final, [], tuple(tables), left_out)


def quick(line: str) -> str:
    """Angles and quotients as exact as the operands are."""
    line = re.sub(rf"(?<!\w)({'|'.join(QUICK)})\b", lambda m: QUICK[m[1]], line)
    quotient = re.fullmatch(rf"(const float \w+ = )(\w+|{NUMBER}) / (\w+|\([^()]*\));", line)
    return f"{quotient[1]}div_fast({quotient[2]}, {quotient[4]});" if quotient else line


def declarations(lines: list[str]) -> dict[str, str]:
    return {m[1]: m[2] for line in lines if (m := re.match(r"const float (\w+) = (.*);$", line))}


def joined_constants(outer: list[str], element: list[str], final: str) -> tuple[list[str], list[str], str]:
    """(x - mean) * scale + bias as x * scale + shift, and the factor of a function that alone uses it joined to both: one
    instruction an element each. What is lost where mean and bias nearly cancel is less than the rounding of x, a sum of TF32
    products."""
    outer, element = list(outer), list(element)
    for k, line in enumerate(element):
        m = re.match(r"const float (\w+) = \((\w+) - (\w+)\) \* (\w+)(?: \+ (\w+))?;$", line)
        if m is None or not {name for name in m.groups()[2:] if name} <= declarations(outer).keys():
            continue
        name, x, mean, scale, bias = m.groups()
        shift = f"{name}shift_"
        outer.append(f"const float {shift} = {f'{bias} - ' if bias else '-'}{mean} * {scale};")
        uses = re.findall(rf"(?:(\w+)\()?\b{name}\b(?:\))?", "\n".join([*element[k + 1 :], final]))
        if len(uses) == 1 and uses[0] in FACTORED:
            rest, factor = FACTORED[uses[0]]
            outer += [f"const float {name}steep_ = {factor} * {scale};", f"const float {name}start_ = {factor} * {shift};"]
            element[k] = f"const float {name} = {x} * {name}steep_ + {name}start_;"
            *element, final = (line.replace(f"{uses[0]}({name})", f"{rest}({name})") for line in [*element, final])
        else:
            element[k] = f"const float {name} = {x} * {scale} + {shift};"
    return outer, element, final


def of_reciprocals(element: list[str], final: str, may_shift: bool) -> tuple[list[str], float]:
    """tanh x = 1 - 2r where r = 1 / (1 + exp(2x)), so a polynomial of tanh x is one of r, with an instruction less. Its constant is
    left out where the final sum may lack it, which saves one more; the second result says what was."""
    left_out = 0.0
    for line in element:
        made = re.fullmatch(r"const float (\w+) = tanh_(of|fast)\((.*)\);", line)
        if made is None:
            continue
        (tanh, kind, operand), k = made.groups(), element.index(line)
        known, others = {tanh: (0.0, 1.0, 0.0)}, []
        for later in element[k + 1 :]:
            found = quadratic(later, known)
            if found is None:
                others.append(later)
            else:
                known[found[0]] = found[1]
        uses = [name for name in re.findall(r"\w+", "\n".join([*others, final])) if name in known]
        if len(uses) != 1 or uses[0] == tanh or len(known) < 3:
            continue  # tanh itself is wanted, or several polynomials of it, or one that is as short
        (name,), r = uses, f"{tanh}r_"
        c0, c1, c2 = known[name]
        constant, first, second = c0 + c1 + c2, -2 * c1 - 4 * c2, 4 * c2  # with 1 - 2r in the place of tanh
        added = rf"const float {re.escape(final)} = (\w+ \+ {name}|{name} \+ \w+);"
        if may_shift and (final == name or any(re.fullmatch(added, other) for other in others)):
            left_out, constant = left_out + constant, 0.0
        slope = f"({number(second)} * {r} + {number(first)})" if second else number(first)
        scaled = operand if kind == "of" else f"TANH_FACTOR * {operand}"
        element = [
            *element[:k],
            f"const float {r} = tanh_part({scaled});",
            f"const float {name} = {r} * {slope}" + (f" + {number(constant)};" if constant else ";"),
            *others,
        ]
    return element, left_out


def quadratic(line: str, known: dict[str, tuple[float, float, float]]) -> tuple[str, tuple[float, float, float]] | None:
    """The name that a statement declares and its coefficients, the constant first, where it is made of what is `known`."""
    made = re.fullmatch(r"const float (\w+) = (\S+) ([-+*]) (\S+);", line)
    if made is None:
        return None
    sides = []
    for side in (made[2], made[4]):
        value = re.fullmatch(NUMBER, side)
        if side not in known and value is None:
            return None
        sides.append(known[side] if value is None else (float(value[1]), 0.0, 0.0))
    a, b = sides
    if made[3] != "*":
        sign = 1.0 if made[3] == "+" else -1.0
        return made[1], (a[0] + sign * b[0], a[1] + sign * b[1], a[2] + sign * b[2])
    if a[1] * b[2] or a[2] * b[1] or a[2] * b[2]:
        return None  # of a higher degree
    return made[1], (a[0] * b[0], a[0] * b[1] + a[1] * b[0], a[0] * b[2] + a[1] * b[1] + a[2] * b[0])


def number(value: float) -> str:
    return literal(value, torch.float32)
