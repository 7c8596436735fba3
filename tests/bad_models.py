"""A good model file, and every way to spoil one: what it then holds, and what the refusal says."""

from __future__ import annotations

from typing import NamedTuple

GOOD = """\
import torch, random
from torch import nn
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n))
    def forward(self, x):
        return x * self.w
def get_inputs():
    return [torch.rand(2, 3)]
def get_init_inputs():
    return [3]
"""

INPUTS = "[torch.rand(2, 3)]"


class Bad(NamedTuple):
    source: str | bytes
    says: str  # a pattern in the one sentence


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


BAD = {
    "syntax error": Bad(GOOD + "def broken(:\n", r"^model\.py:13: not Python: "),
    "no Python at all": Bad("PK\x03\x04\x00\x00", r"^model\.py(:1)?: not Python: .*null bytes"),
    "not text": Bad(b"import torch\n\xff\xfe\xfa\n", r"^model\.py:2: not Python: not utf-8 text"),
    "unknown encoding": Bad(b"# coding: klingon\n", r"^model\.py:1: not Python: unknown encoding"),
    "import fails": Bad(
        "import torch\nimport no_such_module_here\n", r"^model\.py:2: .*No module named 'no_such_module_here'"
    ),
    "import raises": Bad("x = 1\n\nx / 0\n", r"^model\.py:3: importing it raised ZeroDivisionError: division by zero"),
    "import exits": Bad("import sys\nsys.exit(4)\n", r"^model\.py:2: importing it ended Python with sys\.exit\(4\)"),
    "empty": Bad("", r"^model\.py: defines no class named Model"),
    "no Model": Bad(changed("class Model", "class Net"), r"^model\.py: defines no class named Model"),
    "Model is a function": Bad(
        "def Model(): return 1\n", r"^model\.py:1: Model is a function, not a subclass of torch\.nn"
    ),
    "Model is no nn.Module": Bad(
        "class Model: ...\n", r"^model\.py:1: Model is the class Model, not a subclass of torch\.nn"
    ),
    "no get_inputs": Bad(changed("get_inputs", "inputs"), r"^model\.py: defines no function get_inputs\(\)"),
    "no get_init_inputs": Bad(
        changed("get_init_inputs", "init"), r"^model\.py: defines no function get_init_inputs\(\)"
    ),
    "get_inputs is a list": Bad(GOOD + "get_inputs = [1]\n", r"^model\.py: get_inputs is a list, not a function"),
    "get_inputs raises": Bad(
        changed(INPUTS, "[torch.rand(-2, 3)]"),
        r"^model\.py:10: get_inputs\(\) raised RuntimeError: .*negative dimension",
    ),
    "get_inputs raises without a message": Bad(
        changed("return [torch.rand(2, 3)]", "raise KeyError"),
        r"^model\.py:10: get_inputs\(\) raised KeyError$",
    ),
    "get_inputs exits": Bad(changed("return [torch.rand(2, 3)]", "raise SystemExit"), r"^model\.py:10: .*sys\.exit"),
    "get_inputs wants arguments": Bad(
        changed("get_inputs()", "get_inputs(n)"), r"^model\.py:9: get_inputs\(\) raised TypeError: .*'n'"
    ),
    "get_inputs gives a tensor": Bad(
        changed(INPUTS, "torch.rand(2, 3)"),
        r"^model\.py:9: get_inputs\(\) returned a tensor, not a list or tuple",
    ),
    "get_inputs gives None": Bad(
        changed("return [torch.rand(2, 3)]", "return"), r"^model\.py:9: .*returned None, not a list"
    ),
    "get_inputs gives nothing": Bad(changed(INPUTS, "[]"), r"^model\.py:9: get_inputs\(\) returned no tensor"),
    "a set among the inputs": Bad(
        changed(INPUTS, "[torch.rand(2, 3), {1}]"),
        r"^model\.py:9: item 1 of get_inputs\(\) is a set; only tensors and plain values are supported",
    ),
    "an array among the inputs": Bad(
        changed("torch.rand(2, 3)]", "torch.rand(2, 3).numpy()]"), r"item 0 .* is an? ndarray"
    ),
    "a list of tensors among the inputs": Bad(changed(INPUTS, "[[torch.rand(2, 3)]]"), r"item 0 .* is a list"),
    "complex inputs": Bad(
        changed("torch.rand(2, 3)", "torch.rand(2, 3, dtype=torch.complex64)"),
        r"^model\.py:9: item 0 of get_inputs\(\) is complex \(torch\.complex64\)",
    ),
    "a complex number": Bad(changed(INPUTS, "[torch.rand(2, 3), 2j]"), r"item 1 .* is a complex"),
    "zero-sized inputs": Bad(
        changed("rand(2, 3)", "rand(0, 3)"), r"^model\.py:9: item 0 .* has size zero \(shape \(0, 3\)\)"
    ),
    "sparse inputs": Bad(changed("rand(2, 3)", "rand(2, 3).to_sparse()"), r"item 0 .* is not a dense tensor"),
    "meta inputs": Bad(changed("rand(2, 3)", "rand(2, 3, device='meta')"), r"item 0 .* is not a dense tensor"),
    "get_init_inputs raises": Bad(
        changed("return [3]", "return [3][1]"), r"^model\.py:12: get_init_inputs\(\) raised IndexError"
    ),
    "get_init_inputs gives a number": Bad(
        changed("return [3]", "return 3"), r"^model\.py:11: .* returned an int, not a list"
    ),
    "__init__ raises": Bad(
        changed("torch.randn(n)", "torch.randn(n, -1)"),
        r"^model\.py:6: Model\(\*get_init_inputs\(\)\) raised RuntimeError: ",
    ),
    "__init__ wants more": Bad(
        changed("return [3]", "return []"), r"^model\.py:3: Model\(.*\) raised TypeError: .*'n'"
    ),
    "__init__ without super": Bad(changed("super().__init__()", "..."), r"^model\.py:6: .* raised AttributeError: "),
    "neither __init__ nor super": Bad(
        changed("super().__init__()", "return"),
        r"^model\.py:3: Model\(\*get_init_inputs\(\)\) raised AttributeError: ",
    ),
    "no forward": Bad(changed("def forward", "def backward"), r"^model\.py:3: Model has no forward\(\)"),
    "lazy parameters": Bad(
        changed("nn.Parameter(torch.randn(n))", "nn.LazyLinear(n)"),
        r"^model\.py:3: parameter w\.weight is lazy",
    ),
}
