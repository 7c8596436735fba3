"""Graph arguments as Python source text."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch import nn
from torch._ops import OpOverload

from ..errors import Unsupported
from . import sizes
from .graph import Node, Ref
from .names import FORBIDDEN

# Functions of PyTorch that take what the operator takes: a call costs the CPU half as much as through torch.ops.
BINDINGS = {
    **{f"aten.{name}.default": f"torch.{name}" for name in "conv1d conv2d conv3d mm bmm addmm baddbmm matmul".split()},
    **{
        f"aten.conv_transpose{name}": f"torch.conv_transpose{name[:2]}"
        for name in ("1d.default", "2d.input", "3d.input")
    },
    **dict.fromkeys(("aten.view.default", "aten._unsafe_view.default"), "torch.reshape"),  # whatever the layout is here
    **dict.fromkeys(("aten.randint_like.default", "aten.randint_like.low_dtype"), "torch.randint_like"),  # it takes what needs a gradient
    "aten.linear.default": "torch.nn.functional.linear",
    "aten.scaled_dot_product_attention.default": "torch.nn.functional.scaled_dot_product_attention",
}


def call_text(node: Node, value: Callable[[str], str], device: str) -> str:
    """The aten call of a node; `value` gives the text of the values it reads."""
    head, arguments, tail = call_pieces(node, value, device)
    return f"{head}{', '.join(arguments)}{tail}"


def call_pieces(node: Node, value: Callable[[str], str], device: str) -> tuple[str, list[str], str]:
    """The same: what stands before the arguments, the arguments, and what stands behind."""
    if node.target == "getitem":
        return f"{value(node.args[0].name)}[{node.args[1]}]", [], ""
    if not isinstance(node.target, OpOverload):
        raise Unsupported(f"{node.where}: `{node.target}` is no operator that can be written down")
    name = str(node.target)
    if name == "aten.copy.default" and node.shape is not None:  # it has no derivative
        source = argument_text(node.args[1], value, device)
        return f"{source}.to({node.dtype}).expand({shape_text(node.shape)}).clone()", [], ""
    if name in BINDINGS:
        name = BINDINGS[name]
    else:
        name = name.removesuffix(".default")
        name = name if name.startswith("aten.") else f"torch.ops.{name}"
    arguments = [argument_text(a, value, device) for a in node.args]
    arguments += [f"{key}={argument_text(a, value, device)}" for key, a in node.kwargs.items()]
    return f"{name}(", arguments, ")"


def argument_text(argument: Any, value: Callable[[str], str], device: str) -> str:
    if isinstance(argument, Ref):
        return value(argument.name)
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(argument_text(item, value, device) for item in argument)}]"
    if isinstance(argument, sympy.Basic):
        return sizes.text(argument)
    if isinstance(argument, torch.device):
        return device
    if isinstance(argument, (torch.dtype, torch.layout, torch.memory_format, bool, int, float, str)) or argument is None:
        return plain_text(argument)
    raise Unsupported(f"an argument of type {type(argument).__name__} cannot be written down")


def plain_text(value: Any) -> str:
    """A value that is no tensor. Python has no words of its own for infinities and NaN."""
    return f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else ascii(value)


def quoted(text: str) -> str:
    """A string of the model's as Python writes it, in ASCII and in double quotes; words that public harnesses reject are spelt."""
    escaped = text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
    escaped = FORBIDDEN.sub(lambda word: f"\\x{ord(word[0][0]):02x}{word[0][1:]}", escaped)
    return f'"{escaped}"'


def shape_text(shape: tuple[Any, ...]) -> str:
    items = [sizes.text(size) for size in shape]
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def attribute_text(model: nn.Module, path: str) -> str:
    """`layers.0.weight` as `self.layers[0].weight`."""
    text, owner = "self", model
    for name in path.split("."):
        if isinstance(owner, (nn.Sequential, nn.ModuleList)) and name.isdigit():
            text += f"[{name}]"
        elif name.isidentifier() and name.isascii() and not keyword.iskeyword(name):
            text += f".{name}"
        else:
            text = f"getattr({text}, {quoted(name)})"
        owner = getattr(owner, name)
    return text
