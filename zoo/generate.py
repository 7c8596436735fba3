"""Writes zoo/generated/: chains of 3 to 6 operators after a convolution or a linear layer, drawn from fixed seeds.

    python zoo/generate.py          writes the files
    python zoo/generate.py --check  fails if the folder holds anything else
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent / "generated"
COUNT = 24


@dataclass
class Chain:
    """A model while it is drawn: what its value x looks like, and the lines that made it."""

    rng: random.Random
    rank: int
    channels: str = "out_channels"
    space: int = 0  # spatial dimensions, the last ones
    half: bool = False
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    collapsed: set[int] = field(default_factory=set)  # dimensions of size 1
    kept: bool = False  # an earlier value is held as `kept`
    smallest: int = 6  # a lower bound of the spatial sizes, in the small setting

    def dims(self) -> list[int]:
        return [d for d in range(1, self.rank) if d not in self.collapsed]

    def add(self, words: str, body: str, init: str = "") -> bool:
        self.words.append(words)
        self.body.append(body)
        self.init += [init] if init else []
        return True

    def name(self, base: str) -> str:
        return f"{base}{sum(line.startswith(f'self.{base}') for line in self.init) + 1}"


def activation(c: Chain) -> bool:
    word, text = c.rng.choice(
        [
            ("relu", "torch.relu(x)"),
            ("gelu", "F.gelu(x)"),
            ("silu", "F.silu(x)"),
            ("mish", "F.mish(x)"),
            ("tanh", "torch.tanh(x)"),
            ("sigmoid", "torch.sigmoid(x)"),
            ("hardswish", "F.hardswish(x)"),
            ("leaky relu", f"F.leaky_relu(x, {c.rng.choice([0.01, 0.1, 0.2])})"),
            ("elu", f"F.elu(x, alpha={c.rng.choice([0.5, 1.0, 1.5])})"),
            ("softplus", "F.softplus(x)"),
            ("relu6", "F.relu6(x)"),
            ("hardsigmoid", "F.hardsigmoid(x)"),
            ("abs", "torch.abs(x)"),
        ]
    )
    return c.add(word, f"x = {text}")


def arithmetic(c: Chain) -> bool:
    number = round(c.rng.uniform(0.3, 2.5), 2)
    word, sign = c.rng.choice([("scale", "*"), ("shift", "+"), ("divide", "/"), ("subtract", "-")])
    return c.add(word, f"x = x {sign} {number}")


def clamp(c: Chain) -> bool:
    low, high = round(c.rng.uniform(-1, 0), 2), round(c.rng.uniform(0.2, 2), 2)
    text = c.rng.choice([f"min={low}", f"max={high}", f"min={low}, max={high}"])
    return c.add("clamp", f"x = torch.clamp(x, {text})")


def learned(c: Chain) -> bool:
    if 1 in c.collapsed:
        return False
    name, sign = c.name("factor"), c.rng.choice("*+-")
    shape = c.channels + ", 1" * (c.rank - 2)
    return c.add("a learned tensor", f"x = x {sign} self.{name}", f"self.{name} = nn.Parameter(torch.randn({shape}))")


def norm(c: Chain) -> bool:
    if c.collapsed:
        return False
    name = c.name("norm")
    kinds = {"group norm": f"nn.GroupNorm(4, {c.channels})"}
    if not c.half:
        kinds["batch norm"] = f"nn.BatchNorm{max(c.space, 1)}d({c.channels})"
    if c.space:
        kinds["instance norm"] = f"nn.InstanceNorm{c.space}d({c.channels})"
    else:
        kinds["layer norm"] = f"nn.LayerNorm({c.channels})"
    word = c.rng.choice(sorted(kinds))
    return c.add(word, f"x = self.{name}(x)", f"self.{name} = {kinds[word]}")


def pool(c: Chain) -> bool:
    spatial = set(range(2, c.rank))
    if not c.space or spatial & c.collapsed or c.smallest < 4 or c.kept:
        return False
    kind = c.rng.choice(["max", "max"] if c.half and c.space == 3 else ["max", "avg"])
    overlap = c.rng.random() < 0.4
    shape = "3, stride=2, padding=1" if overlap else "2"
    c.smallest //= 2
    return c.add(f"{kind} pool", f"x = F.{kind}_pool{c.space}d(x, {shape})")


def reduction(c: Chain) -> bool:
    if len(c.dims()) < 1 or len(c.words) < 2:
        return False
    dims = sorted(c.rng.sample(c.dims(), c.rng.randint(1, min(2, len(c.dims())))))
    word = c.rng.choice(["sum", "mean", "amax", "amin", "logsumexp"])
    c.collapsed |= set(dims)
    return c.add(f"{word} over {', '.join(map(str, dims))}", f"x = torch.{word}(x, dim={tuple(dims)}, keepdim=True)")


def softmax(c: Chain) -> bool:
    if not c.dims():
        return False
    dim = c.rng.choice(c.dims())
    word = c.rng.choice(["softmax", "log_softmax"])
    return c.add(f"{word} over {dim}", f"x = F.{word}(x, dim={dim})")


def keep(c: Chain) -> bool:
    if c.kept or c.collapsed or len(c.words) > 3:
        return False
    c.kept = True
    c.body.append("kept = x")
    return activation(c)


def rejoin(c: Chain) -> bool:
    if not c.kept:
        return False
    c.kept = False
    word, sign = c.rng.choice([("residual sum", "+"), ("residual product", "*")])
    return c.add(word, f"x = x {sign} kept")


STEPS = [activation, arithmetic, norm, reduction, rejoin] * 2 + [clamp, learned, pool, softmax, keep]

# Anchor: its class, the spatial dimensions of its result, its options, the sizes small and large.
CONV, UP = ["", ", stride=2", ", padding=1", ", dilation=2"], ["", ", stride=2", ", stride=2, padding=1"]
ANCHORS = {
    "conv1d": ("Conv1d", 1, CONV, "(2, 6, 8, 24)", "(64, 128, 256, 2048)"),
    "conv2d": ("Conv2d", 2, [*CONV, ", groups=2"], "(2, 4, 8, 15, 14)", "(64, 32, 64, 112, 112)"),
    "conv3d": ("Conv3d", 3, CONV[::2], "(2, 2, 8, 8, 9, 10)", "(8, 16, 32, 24, 56, 56)"),
    "conv_transpose1d": ("ConvTranspose1d", 1, UP, "(2, 6, 8, 11)", "(64, 128, 128, 2048)"),
    "conv_transpose2d": ("ConvTranspose2d", 2, UP, "(2, 4, 8, 7, 8)", "(32, 32, 64, 80, 80)"),
    "conv_transpose3d": ("ConvTranspose3d", 3, UP, "(2, 2, 8, 5, 6, 5)", "(16, 16, 32, 16, 40, 40)"),
    "linear": ("Linear", 0, ["", ", bias=False"], "(9, 20, 24)", "(8192, 1024, 4096)"),
}
AXES = ("depth", "height", "width")


def draw(seed: int) -> tuple[str, str]:
    """(file name, text) of one model."""
    rng = random.Random(seed)
    anchor = sorted(ANCHORS)[seed % len(ANCHORS)]
    kind, space, options, small, large = ANCHORS[anchor]
    option = rng.choice(options)
    half = rng.random() < 0.2 and anchor in ("conv2d", "linear", "conv1d")
    chain = Chain(rng, rank=2 + space, space=space, half=half)
    length = rng.randint(3, 6)
    while len(chain.words) < length:
        rng.choice(STEPS)(chain)
    if chain.kept:
        rejoin(chain)
    return f"s{seed:02}_{anchor}_{slug(chain.words)}.py", text_of(seed, anchor, kind, option, small, large, chain)


def slug(words: list[str]) -> str:
    short = [word.split(" over")[0].removeprefix("a ").replace(" ", "_") for word in words]
    return "_".join(short[:3])


def text_of(seed: int, anchor: str, kind: str, option: str, small: str, large: str, chain: Chain) -> str:
    axes = AXES[3 - chain.space :]
    sizes = ", ".join(["batch", "in_channels", "out_channels", *axes])
    shape = ", ".join(["batch", "in_channels", *axes])
    dtype = ", dtype=torch.bfloat16" if chain.half else ""
    kernel = ", 3" if chain.space else ""
    layers = [f"self.anchor = nn.{kind}(in_channels, out_channels{kernel}{option})", *chain.init]
    layers += ["self.to(torch.bfloat16)"] if chain.half else []
    init = "\n".join(f"        {line}" for line in layers)
    body = "\n".join(f"        {line}" for line in ["x = self.anchor(x)", *chain.body])
    uses_functions = "import torch.nn.functional as F\n" if "F." in body else ""
    words = f"{anchor}{', bf16' if chain.half else ''}: {', '.join(chain.words)}."
    setting = f"{sizes} = {small} if SMALL else {large}"
    return f'''"""Written by zoo/generate.py, seed {seed}."""

import os

import torch
import torch.nn as nn
{uses_functions}
SMALL = os.environ.get("FUSEWRIGHT_ZOO") == "small"


class Model(nn.Module):
    """{words}"""

    def __init__(self, in_channels, out_channels):
        super().__init__()
{init}

    def forward(self, x):
{body}
        return x


{setting}


def get_inputs():
    return [torch.randn({shape}{dtype})]


def get_init_inputs():
    return [in_channels, out_channels]
'''


def main() -> None:
    wanted = dict(draw(seed) for seed in range(COUNT))
    FOLDER.mkdir(exist_ok=True)
    found = {path.name: path.read_text() for path in FOLDER.glob("*.py")}
    if "--check" in sys.argv:
        sys.exit(None if found == wanted else "zoo/generated/ is not what zoo/generate.py writes")
    for name in found.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
