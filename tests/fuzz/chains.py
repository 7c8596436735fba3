"""Random chains of 2 to 8 operators that Fusewright fuses, as Python text. The same seed gives the same chain.

A chain is a class with a forward of its own. Several chains make one model, so that one compilation serves them all;
one chain alone is a model file that anybody can run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 32, 33, 40, 64]
LONG = [300, 1024, 1500, 4100]  # rows that more than one warp works on
VERY_LONG = [17000, 40000, 70000]  # rows that are cut into pieces, or do not stay in cache

UNARY = """
F.relu({x}) | F.gelu({x}) | F.gelu({x}, approximate="tanh") | F.silu({x}) | torch.sigmoid({x}) | torch.tanh({x}) |
F.softplus({x}) | F.elu({x}, 0.7) | F.leaky_relu({x}, 0.2) | F.hardswish({x}) | F.hardsigmoid({x}) | F.mish({x}) |
F.selu({x}) | F.celu({x}, 1.3) | torch.abs({x}) | -{x} | {x} * {x} | torch.sqrt({x}.abs() + 0.1) |
torch.rsqrt({x} * {x} + 1.0) | torch.log1p({x}.abs()) | torch.exp(-{x}.abs()) | torch.sin({x}) | torch.cos({x}) |
torch.erf({x}) | torch.clamp({x}, -0.8, 1.1) | torch.clamp({x}, min=-0.3) | torch.where({x} > 0, {x}, 0.5 * {x}) |
{x}.masked_fill({x} < 0, 0.0) | 2.5 * {x} - 1 | {x} / 1.7 | F.logsigmoid({x}) | F.softsign({x}) |
F.softshrink({x}, 0.4) | 1 / (1 + {x}.abs()) | {x}.pow(3) * 0.1 | torch.atan({x}) | F.hardtanh({x}) | F.relu6({x} + 3)
"""
BINARY = """
{x} + {y} | {x} - {y} | {x} * {y} | torch.maximum({x}, {y}) | torch.minimum({x}, {y}) | {x} / (1 + {y}.abs()) |
torch.where({x} > {y}, {x}, {y}) | torch.lerp({x}, {y}, 0.3) | torch.addcmul({x}, {x}, {y}, value=0.5)
"""
REDUCTIONS = ["sum", "mean", "amax", "amin", "logsumexp", "var", "norm", "mean", "sum"]


@dataclass(frozen=True)
class Value:
    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


@dataclass
class Chain:
    """One chain while it is drawn, and when it is done."""

    seed: int
    rng: random.Random
    dtype: str = "torch.float32"
    inputs: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    parameters: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)  # outputs besides the last value

    @property
    def last(self) -> Value:
        return self.values[-1]

    @property
    def outputs(self) -> list[str]:
        return list(dict.fromkeys([self.last.name, *self.extra]))

    def put(self, text: str, shape: Sequence[int], after: str = "") -> bool:
        """A new value; `after` is a statement that changes it in place, with {v} for its name."""
        name = f"v{len(self.values) - 1}"
        self.lines.append(f"{name} = {text}")
        self.lines += [after.format(v=name)] if after else []
        self.values.append(Value(name, tuple(shape)))
        return True

    def input(self, shape: Sequence[int]) -> str:
        name = f"x{self.seed}_{len(self.inputs)}"
        self.inputs.append((name, tuple(shape)))
        return name

    def parameter(self, shape: Sequence[int]) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters.append((name, tuple(shape)))
        return f"self.{name}"


# ---- operators: each adds one value to the chain, or declines


def words(table: str) -> list[str]:
    return [text.strip() for text in table.replace("\n", " ").split("|")]


def unary(c: Chain) -> bool:
    return c.put(c.rng.choice(words(UNARY)).format(x=c.last.name), c.last.shape)


def binary(c: Chain) -> bool:
    """With an earlier value, an input or a parameter that fits, in either order."""
    x = c.last
    fitting = [v for v in c.values[:-1] if broadcast(v.shape, x.shape) is not None]
    kind = c.rng.choice(["value", "value", "input", "parameter"])
    if kind == "value" and fitting:
        other = c.rng.choice(fitting)
        name, shape = other.name, other.shape
    else:
        shape = thinner(c, x.shape)
        name = c.input(shape) if kind == "input" else c.parameter(shape)
    whole = broadcast(x.shape, shape)
    if whole is None or Value("", whole).numel > 4 * max(x.numel, 64):
        return False
    pair = [x.name, name]
    c.rng.shuffle(pair)
    return c.put(c.rng.choice(words(BINARY)).format(x=pair[0], y=pair[1]), whole)


def thinner(c: Chain, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one: some sizes 1, some leading ones left out."""
    thin = tuple(1 if c.rng.random() < 0.5 else size for size in shape)
    return thin[c.rng.randint(0, len(thin)) :] if c.rng.random() < 0.4 else thin


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(m != n and 1 not in (m, n) for m, n in zip(a, b, strict=True)):
        return None
    return tuple(n if m == 1 else m for m, n in zip(a, b, strict=True))


def reduction(c: Chain) -> bool:
    x = c.last
    if not x.shape:
        return False
    dims = sorted(c.rng.sample(range(len(x.shape)), c.rng.randint(1, len(x.shape))))
    kind, keep = c.rng.choice(REDUCTIONS), c.rng.random() < 0.6
    if kind == "var" and (Value("", tuple(x.shape[d] for d in dims)).numel < 2 or c.dtype != "torch.float32"):
        return False
    if c.rng.random() < 0.3:
        dims = [d - len(x.shape) for d in dims]
    options = f"dim={tuple(dims)}, keepdim={keep}"
    text = {"norm": f"torch.linalg.vector_norm({x.name}, 2, {options})"}.get(kind, f"torch.{kind}({x.name}, {options})")
    gone = {d % len(x.shape) for d in dims}
    shape = [1 if d in gone else n for d, n in enumerate(x.shape) if keep or d not in gone]
    return c.put(text, shape)


def rejoin(c: Chain) -> bool:
    """A reduced value used with an earlier one that it broadcasts to, as norms do."""
    x = c.last
    fitting = [v for v in c.values[:-1] if broadcast(v.shape, x.shape) == v.shape and v.shape != x.shape]
    if not fitting:
        return False
    other = c.rng.choice(fitting)
    text = c.rng.choice(["{y} - {x}", "{y} * torch.sigmoid({x})", "{y} / (1 + {x}.abs())", "torch.tanh({y} + {x})"])
    return c.put(text.format(x=x.name, y=other.name), other.shape)


def softmax(c: Chain) -> bool:
    x = c.last
    if not x.shape:
        return False
    dim = c.rng.randrange(len(x.shape))
    return c.put(f"F.{c.rng.choice(['softmax', 'log_softmax'])}({x.name}, dim={dim})", x.shape)


def norm(c: Chain) -> bool:
    x, rank = c.last, len(c.last.shape)
    if rank < 2:
        return False
    choices = [f"{x.name} * torch.rsqrt({x.name}.pow(2).mean(-1, keepdim=True) + 1e-3)"]
    if x.shape[-1] > 1:
        weight, bias = c.parameter(x.shape[-1:]), c.parameter(x.shape[-1:])
        choices.append(f"F.layer_norm({x.name}, {x.shape[-1:]}, {weight}, {bias}, 1e-3)")
    groups = [g for g in (1, 2, 3, 4) if x.shape[1] % g == 0 and x.numel // x.shape[0] // g > 1]
    if groups:
        choices.append(f"F.group_norm({x.name}, {c.rng.choice(groups)}, None, None, 1e-3)")
    if x.numel // x.shape[1] > 1 and c.dtype == "torch.float32":
        choices.append(f"F.batch_norm({x.name}, None, None, None, None, True, 0.1, 1e-3)")
    if rank >= 3 and x.numel // x.shape[0] // x.shape[1] > 1:
        choices.append(f"F.instance_norm({x.name}, eps=1e-3)")
    return c.put(c.rng.choice(choices), x.shape)


def pool(c: Chain) -> bool:
    x, rank = c.last, len(c.last.shape)
    spaces = [n for n in (1, 2, 3) if rank == n + 2 and all(size >= 3 for size in x.shape[2:])]
    if not spaces or c.dtype != "torch.float32":
        return False
    n = spaces[0]
    kernel, stride = c.rng.choice([2, 3]), c.rng.choice([1, 2, 3])
    padding, ceil = c.rng.choice([0, 0, 1]), c.rng.random() < 0.25
    kind = c.rng.choice(["max", "max", "avg"])
    more = ", count_include_pad=False" if kind == "avg" and c.rng.random() < 0.5 else ""

    def size(length: int) -> int:
        steps = length + 2 * padding - kernel
        out = (-(-steps // stride) if ceil else steps // stride) + 1
        return out - 1 if ceil and (out - 1) * stride >= length + padding else out

    shape = [*x.shape[:2], *map(size, x.shape[2:])]
    return c.put(f"F.{kind}_pool{n}d({x.name}, {kernel}, {stride}, {padding}, ceil_mode={ceil}{more})", shape)


def view(c: Chain) -> bool:
    x, rank = c.last, len(c.last.shape)
    if rank == 0:
        return False
    dim = c.rng.randrange(rank)
    size = x.shape[dim]
    kind = c.rng.choice("transpose permute flatten slice step flip unsqueeze split select expand pad roll edge unfold".split())
    before, after = list(x.shape[:dim]), list(x.shape[dim + 1 :])
    index = ":, " * dim
    if kind == "transpose" and rank >= 2:
        other = c.rng.randrange(rank)
        shape = list(x.shape)
        shape[dim], shape[other] = shape[other], shape[dim]
        return c.put(f"{x.name}.transpose({dim}, {other})", shape)
    if kind == "permute" and rank >= 3:
        order = c.rng.sample(range(rank), rank)
        return c.put(f"{x.name}.permute({tuple(order)})", [x.shape[d] for d in order])
    if kind == "flatten" and rank >= 2:
        first = c.rng.randrange(rank - 1)
        return c.put(f"{x.name}.flatten({first})", [*x.shape[:first], Value("", x.shape[first:]).numel])
    if kind == "slice" and size >= 3:
        return c.put(f"{x.name}[{index}1:-1]", [*before, size - 2, *after])
    if kind == "step" and size >= 4:
        return c.put(f"{x.name}[{index}1::2]", [*before, size // 2, *after])
    if kind == "flip":
        return c.put(f"{x.name}.flip({dim})", x.shape)
    if kind == "unsqueeze" and rank <= 4:
        return c.put(f"{x.name}.unsqueeze({dim})", [*before, 1, size, *after])
    if kind == "split" and size % 2 == 0 and rank <= 4:
        return c.put(f"{x.name}.unflatten({dim}, (2, {size // 2}))", [*before, 2, size // 2, *after])
    if kind == "select" and rank >= 2:
        return c.put(f"{x.name}.select({dim}, {c.rng.choice([0, -1])})", [*before, *after])
    if kind == "expand" and size == 1 and x.numel < 2000:
        shape = [*before, 3, *after]
        return c.put(f"{x.name}.expand({tuple(shape)})", shape)
    if kind == "pad":
        left, right = c.rng.randint(0, 2), c.rng.randint(0, 2)
        return c.put(f"F.pad({x.name}, ({left}, {right}), value=0.5)", [*x.shape[:-1], x.shape[-1] + left + right])
    if kind == "roll":
        return c.put(f"torch.roll({x.name}, {c.rng.choice([1, -2, 5])}, {dim})", x.shape)
    if kind == "edge" and rank == 3 and x.shape[-1] >= 3:
        mode = c.rng.choice(["reflect", "replicate", "circular"])
        return c.put(f"F.pad({x.name}, (2, 1), mode='{mode}')", [*x.shape[:-1], x.shape[-1] + 3])
    if kind == "unfold" and size >= 3 and rank <= 4 and x.numel < 5000:
        return c.put(f"{x.name}.unfold({dim}, 3, 2)", [*before, (size - 3) // 2 + 1, *after, 3])
    return False


def half_of(c: Chain) -> bool:
    """Two parts of one value, joined by arithmetic, as gates are."""
    x, rank = c.last, len(c.last.shape)
    fitting = [d for d in range(rank) if x.shape[d] % 2 == 0]
    if not fitting:
        return False
    dim = c.rng.choice(fitting)
    a, b = (f"{x.name}.chunk(2, {dim})[{i}]" for i in (0, 1))
    return c.put(f"{a} * torch.sigmoid({b})", [n // 2 if d == dim else n for d, n in enumerate(x.shape)])


def stacked(c: Chain) -> bool:
    x = c.last
    fitting = [v for v in c.values[:-1] if v.shape == x.shape and len(x.shape) <= 3]
    if not fitting:
        return False
    dim = c.rng.randint(0, len(x.shape))
    other = c.rng.choice(fitting)
    return c.put(f"torch.stack(({x.name}, {other.name}), {dim})", [*x.shape[:dim], 2, *x.shape[dim:]])


def joined(c: Chain) -> bool:
    """The value with a part of itself, or with another one, along a dimension."""
    x, rank = c.last, len(c.last.shape)
    if rank == 0 or x.numel > 5000:
        return False
    dim = c.rng.randrange(rank)
    kept = [v for v in c.values[:-1] if len(v.shape) == rank and same_but(dim, v.shape, x.shape)]
    part = c.rng.choice(kept) if kept else None
    other, size = (part.name, part.shape[dim]) if part else (f"{x.name}.narrow({dim}, 0, 1).exp()", 1)
    parts = [x.name, other] if c.rng.random() < 0.5 else [other, x.name]
    return c.put(f"torch.cat(({', '.join(parts)}), {dim})", [n + size if d == dim else n for d, n in enumerate(x.shape)])


def same_but(dim: int, a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n for d, (m, n) in enumerate(zip(a, b, strict=True)) if d != dim)


def masked(c: Chain) -> bool:
    """A comparison of the first input, which is exact: it chooses between the value and another one."""
    x, (first, shape) = c.last, c.inputs[0]
    if broadcast(shape, x.shape) != x.shape:
        return False
    text = c.rng.choice(
        [
            "torch.where({m} > 0.3, {x}, 0.1 - {x})",
            "{x}.masked_fill(({m} < -0.5) | ({m} > 1), 0.25)",
            "{x} * ({m} >= 0).to({x}.dtype)",
            "torch.where(~({m} <= 0) & ({m} < 2), {x}, {m})",
        ]
    )
    return c.put(text.format(x=x.name, m=first), x.shape)


def assigned(c: Chain) -> bool:
    """A part of the value written in place."""
    x, rank = c.last, len(c.last.shape)
    if rank == 0:
        return False
    dim = c.rng.randrange(rank)
    index = ":, " * dim
    where = c.rng.choice(["0", "-1", "1:", ":-1", "1:3"]) if x.shape[dim] >= 3 else "0"
    change = c.rng.choice(["= 0.5", "*= 2", "-= 1"])
    return c.put(f"{x.name}.clone()", x.shape, f"{{v}}[{index}{where}] {change}")


SCANS = """
torch.cumsum({x}, {d}) * 0.1 | torch.cumsum({x}.flip({d}), {d}).flip({d}) * 0.1 | torch.cumsum({x}, {d}) - {x} |
torch.cumsum(torch.cat((torch.zeros_like({x}.narrow({d}, 0, 1)), {x}.narrow({d}, 0, {n} - 1)), {d}), {d}) |
torch.cumsum(torch.where({x} > 0.1, {x}, 0.0), {d}).neg() | torch.cummax({x}, {d}).values + {x} |
torch.cumprod(1 + 0.02 * torch.tanh({x}), {d}) | torch.logcumsumexp({x}, {d}) | torch.cummin({x}.flip({d}), {d})[0].flip({d})
"""


def scan(c: Chain) -> bool:
    x = c.last
    if not x.shape:
        return False
    dim = c.rng.randrange(len(x.shape))
    return c.put(c.rng.choice(words(SCANS)).format(x=x.name, d=dim, n=x.shape[dim]), x.shape)


def library(c: Chain) -> bool:
    """An operator that stays with PyTorch, in the middle of what is fused."""
    x, rank = c.last, len(c.last.shape)
    if rank == 0 or x.numel > 20000:
        return False
    dim = c.rng.randrange(rank)
    longer = [2 * n if d == dim else n for d, n in enumerate(x.shape)]
    choices = [
        (f"torch.sort({x.name}, dim={dim}).values", x.shape),
        (f"torch.cat(({x.name}, -{x.name}), dim={dim})", longer),
    ]
    if rank >= 2 and x.shape[-1] <= 64:
        weight = c.parameter((x.shape[-1], 5))
        choices.append((f"{x.name} @ {weight}", [*x.shape[:-1], 5]))
    return c.put(*c.rng.choice(choices))


def also_returned(c: Chain) -> bool:
    """An earlier value becomes an output as well; no operator of its own."""
    c.extra.append(c.rng.choice(c.values).name)
    return False


STEPS: list[tuple[Callable[[Chain], bool], int]] = [
    (unary, 6), (binary, 5), (reduction, 4), (rejoin, 4), (softmax, 2), (norm, 3), (pool, 2), (view, 4),
    (scan, 2), (half_of, 1), (stacked, 1), (joined, 2), (masked, 2), (assigned, 1), (library, 1), (also_returned, 1),
]  # fmt: skip


def draw(seed: int) -> Chain:
    """The chain of a seed."""
    rng = random.Random(f"chain {seed}")
    chain = Chain(seed, rng, dtype=rng.choice(["torch.float32"] * 8 + ["torch.bfloat16", "torch.float16"]))
    chain.values.append(Value(chain.input(shape := first_shape(rng)), shape))
    steps, weights = [step for step, _ in STEPS], [weight for _, weight in STEPS]
    length, tries = rng.randint(2, 8), 0
    while len(chain.values) <= length and tries < 100:
        tries += 1
        rng.choices(steps, weights)[0](chain)
    if rng.random() < 0.15 and chain.inputs[0][1]:
        first, shape = chain.inputs[0]
        chain.lines.append(f"where = torch.argmax({first}, dim={rng.randrange(len(shape))})")
        chain.extra.append("where")
    return chain


def first_shape(rng: random.Random) -> tuple[int, ...]:
    rank = rng.choice([1, 2, 2, 3, 3, 4, 4, 5])
    chance = rng.random()
    if chance < 0.15:
        before = [rng.choice(SIZES[1:5]) for _ in range(rng.randint(0, 2))]
        return (*before, rng.choice(LONG), *[rng.choice(SIZES[:4])] * (rank % 2))
    if chance < 0.19:
        shape = [rng.choice([1, 2, 3]), rng.choice(VERY_LONG)]
        rng.shuffle(shape)
        return tuple(shape)
    limit = {1: 64, 2: 64, 3: 40, 4: 17, 5: 8}[rank]
    return tuple(rng.choice([n for n in SIZES if n <= limit]) for _ in range(rank))


# ---- chains as a model file


def class_text(chain: Chain, name: str) -> str:
    made = [f"self.{p} = nn.Parameter(torch.randn({shape}, dtype={chain.dtype}))" for p, shape in chain.parameters]
    init = "\n        ".join(["    def __init__(self):", "super().__init__()", *made])
    names = [n for n, _ in chain.inputs]
    body = "\n".join(f"        {line}" for line in chain.lines)
    returned = ", ".join(chain.outputs) + ("," if len(chain.outputs) == 1 else "")
    forward = f"    def forward(self, {', '.join(names)}):\n{body}\n        return ({returned})\n"
    return f"class {name}(nn.Module):\n{init}\n\n{forward}"


def model_text(chains: Sequence[Chain]) -> str:
    """One chain as a model, or several as the parts of one."""
    head = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
    inputs = [(name, shape, chain.dtype) for chain in chains for name, shape in chain.inputs]
    if len(chains) == 1:
        classes = class_text(chains[0], "Model")
    else:
        parts = "\n\n".join(class_text(chain, f"Chain{chain.seed}") for chain in chains)
        made = "\n".join(f"        self.chain{chain.seed} = Chain{chain.seed}()" for chain in chains)
        names = ", ".join(name for name, _, _ in inputs)
        calls = "".join(f"            *self.chain{c.seed}({', '.join(n for n, _ in c.inputs)}),\n" for c in chains)
        model = f"class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{made}\n\n"
        model += f"    def forward(self, {names}):\n        return (\n{calls}        )\n"
        classes = f"{parts}\n\n{model}"
    drawn = "".join(f"        torch.randn({shape}, dtype={dtype}),\n" for _, shape, dtype in inputs)
    tail = f"def get_inputs():\n    return [\n{drawn}    ]\n\n\ndef get_init_inputs():\n    return []\n"
    return f"{head}{classes}\n\n{tail}"
