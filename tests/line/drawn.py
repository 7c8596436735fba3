"""Small model files whose names and remarks are drawn from every word that means something to us, and from nasty characters."""

from __future__ import annotations

import builtins
import keyword
import random
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fusewright.emit.surroundings import _globals as globals_of
from fusewright.ir import names
from fusewright.target import helpers

SPECIAL = (
    "NAN M_PI INFINITY I EOF errno assert linux unix stdin major minor x_entry x x_0 x_1 x_ptr x_acc x_size0 q k v out n c d h w in_d "
    "value input weight bias total tile _x x_ __x _ grad_x super_ len list range sizes tensors modules self_ kept scratch sums slices "
    "mul_fwd_kernel threadIdx blockIdx blockDim gridDim warpSize ROWS VEC Index T A N expf fabsf printf float4 uint4 LogSumExp LOG2_E "
    "TANH_FACTOR product Tile größe größe_2 π plain_0 step_1 mul add sub sub_shift mean_of packed_2 forward_ training_".split()
)
CHARACTERS = (
    "\\", " \\", "\\ ", "*/", "/*", "//", "'''", '"""', "??/", "?\u00e9?/", "\u2028", "\u2029", "\x0c", "\x85", "\x1c",
    "\u00e9\u03a3\u2212",
    "\U0001f600", "$cuda ${x} $$", "{0} {x} %s", "#include <x>", "#define float double", "try except pass threading", "meet LogSumExp",
    "x" * 400, "'", '"', "\t", "R\"(", ")\"", "__half load( store( wgmma",
)  # fmt: skip


def words(emitted: str) -> list[str]:
    """Helpers, keywords and builtins of Python, words of C++ and CUDA, and the names that an emitted file has."""
    ours = emitted[emitted.index("# Below: written by") :]
    reserved = {word for word in names.RESERVED if not word.rpartition("_")[2].isdigit()}  # of those with numbers some are special
    found = {*helpers.device_names(), *keyword.kwlist, *dir(builtins), *reserved, *globals_of(ours), *SPECIAL}
    return sorted(found)


@dataclass(frozen=True)
class Drawn:
    file: str
    source: str
    inputs: tuple[str, ...]  # parameters of forward


def drawn(seed: int, known: list[str]) -> Drawn:
    dice = random.Random(seed)
    identifiers = [word for word in known if word.isidentifier() and not keyword.iskeyword(word)]
    taken: set[str] = {"torch", "nn", "Model", "get_inputs", "get_init_inputs", "self"}  # what the file itself says

    def name(*, of_module: bool = False) -> str:
        while True:
            word = dice.choice(identifiers if not of_module else known)
            free = word not in taken and not (of_module and (hasattr(nn.Module(), word) or "." in word))
            if free and (of_module or not word.startswith("__")):
                taken.add(word)
                return word

    def remark() -> str:
        parts = [dice.choice([dice.choice(known), dice.choice(CHARACTERS)]) for _ in range(dice.randint(1, 4))]
        return "".join(parts) if dice.random() < 0.3 else " ".join(parts)

    def docstring() -> str:
        return f"r{remark().replace(chr(92), '').replace(chr(34), '')!r}"

    kind = dice.choice(["pointwise", "norm", "linear", "convolution"])
    layer, shape = {
        "pointwise": ("nn.Identity()", "4, 8"),
        "norm": ("nn.LayerNorm(8)", "4, 8"),
        "linear": ("nn.Linear(8, 8)", "4, 8"),
        "convolution": ("nn.Conv2d(3, 8, 3)", "2, 3, 6, 6"),
    }[kind]
    other = "2, 8, 4, 4" if kind == "convolution" else "4, 8"
    factor = "8, 1, 1" if kind == "convolution" else "8"
    first, second, local = name(), name(), name()
    helper, block, sub, parameter, buffer = name(), name(), name(of_module=True), name(of_module=True), name(of_module=True)
    if dice.random() < 0.15:  # a parameter of forward may hide a module or a builtin
        first = dice.choice(["torch", "nn", "len", "super", "type", "ModelNew", "Model"])
    source = f'''{docstring()}
# {remark()}
import torch
from torch import nn


def {helper}(value):  # {remark()}
    {docstring()}
    return value.tanh() * 2 + 1  # {remark()}


class {block}(nn.Module):
    {docstring()}

    def __init__(self):
        nn.Module.__init__(self)
        self.add_module({sub!r}, {layer})  # {remark()}

    def forward(self, x):
        return self.get_submodule({sub!r})(x)  # {remark()}


class Model(nn.Module):
    {docstring()}

    def __init__(self):
        nn.Module.__init__(self)
        self.add_module({sub!r}, {block}())
        self.register_parameter({parameter!r}, nn.Parameter(torch.randn({factor})))  # {remark()}
        self.register_buffer({buffer!r}, torch.rand({factor}) + 1)

    def forward(self, {first}, {second}):
        {local} = {helper}(self.get_submodule({sub!r})({first}))  # {remark()}
        {local} = {local} * self.get_parameter({parameter!r}) / self.get_buffer({buffer!r}) + {second}  # {remark()}
        return {local} - {local}.mean(1, keepdim=True)  # {remark()}


def get_inputs():
    return [torch.randn({shape}), torch.randn({other})]


def get_init_inputs():
    return []
'''
    stem = remark().replace("/", "_").replace("\0", "").encode()[:120].decode(errors="ignore").strip() or "model"
    return Drawn(f"{stem}.py", source, (first, second))


def write(draw: Drawn, folder: Path) -> Path:
    path = folder / draw.file
    path.write_text(draw.source, newline="\n")
    return path
