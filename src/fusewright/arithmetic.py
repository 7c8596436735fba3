"""What PyTorch's library computes float32 convolutions in, where the flags allow TF32: cuDNN does not always use it.

On a GPU each convolution of a model is asked: run once at its own sizes and compared with float64, and what was found is kept in
the cache. Elsewhere the rule below answers: one place for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import __version__, stand_ins
from .held import put_back
from .options import cache_root, private

# H200, cuDNN of PyTorch 2.11: it errs 1e-6 of the rms where a group has 3 to 16 input channels, as float32 does, and as TF32 does above.
FEW_CHANNELS = 16
# Rms error over rms result, between float32's (1e-7 to 1e-6; 1e-5 for Winograd's transforms) and TF32's (2e-4, whatever the depth).
ROUNDED = 4e-5
SAMPLES = 4  # of a batch that are run to ask: algorithms are chosen by channels and sizes


@dataclass(frozen=True)
class Convolution:
    """What of a convolution's call says which of the library's algorithms serve it; tuples over the spatial dimensions."""

    inputs: int  # channels of one group
    outputs: int  # of all groups
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False

    @property
    def is_depthwise(self) -> bool:
        """Tensor cores have nothing to multiply: neither the library's kernels nor ours use them."""
        return self.inputs == 1 and self.groups > 1 and not self.transposed


@dataclass(frozen=True)
class Library:
    """Which convolutions the library rounds the operands of: as a GPU answered, and by the rule for those it was not asked about."""

    asked: tuple[tuple[Convolution, bool], ...] = ()

    def rounds(self, convolution: Convolution | None) -> bool:
        """It multiplies TF32 numbers; else float32's. On a host, where none can be asked: not of few input channels."""
        if convolution is None:
            return True
        known = next((rounds for other, rounds in self.asked if other == convolution), None)
        return convolution.inputs > FEW_CHANNELS if known is None else known

    def to_dict(self) -> list[dict[str, Any]]:
        return [{**asdict(convolution), "tf32": rounds} for convolution, rounds in self.asked]


def convolution_of(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Convolution | None:
    """The convolution that an aten call is, or is the gradient of; None where it is none."""
    arguments = func._schema.arguments
    bound: dict[str, Any] = {a.name: a.default_value for a in arguments if a.has_default_value()}
    bound |= {a.name: value for a, value in zip(arguments, args, strict=False)} | dict(kwargs)
    weight = bound.get("weight")
    if not isinstance(weight, Tensor) or weight.dim() < 3:
        return None
    rank, groups = weight.dim() - 2, int(bound.get("groups", 1))
    transposed = bool(bound.get("transposed", "transpose" in func._schema.name))

    def many(name: str, default: int) -> tuple[int, ...]:
        value = bound.get(name, default)
        listed = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, int) for item in listed):
            return ()  # "same", which is worked out below this call
        return tuple(listed * rank if len(listed) == 1 else listed)

    first, second = int(weight.shape[0]), int(weight.shape[1])
    inputs, outputs = (first // groups, second * groups) if transposed else (second, first)
    kernel = tuple(int(size) for size in weight.shape[2:])
    return Convolution(inputs, outputs, kernel, many("stride", 1), many("padding", 0), many("dilation", 1), groups, transposed)


# ---- the convolutions of a model ----


class _Noted(TorchDispatchMode):
    """Notes each float32 convolution that is called, and the sizes of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Convolution, tuple[int, ...]] = {}

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and args[0].dtype is torch.float32:
            convolution = convolution_of(func, args, kwargs or {})
            if convolution is not None:
                self.found.setdefault(convolution, tuple(int(size) for size in args[0].shape))
        return func(*args, **(kwargs or {}))


def convolutions_of(model: nn.Module, inputs: Sequence[Any]) -> dict[Convolution, tuple[int, ...]]:
    """The float32 convolutions that a forward calls and the sizes they are called with, found without computing; none where that fails."""
    device = next((t.device for t in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))
    noted, fake = _Noted(), FakeTensorMode(allow_non_fake_inputs=True)
    with contextlib.suppress(Exception), stand_ins.kept(model), put_back(model, set(), trusted=True), fake, noted, torch.enable_grad():
        model(*(torch.empty(x.shape, dtype=x.dtype, device=device) if isinstance(x, Tensor) else x for x in inputs))
    return noted.found


# ---- asking a GPU ----


def library_of(convolutions: Mapping[Convolution, tuple[int, ...]], device: torch.device) -> Library:
    """What the library does with each: asked on a GPU, or as it answered an earlier run; on a host the rule's answer is enough."""
    if device.type != "cuda" or not convolutions or not torch.cuda.is_available():
        return Library()
    path = _cache_file()
    known = _recalled(path)
    answers: dict[str, bool] = {}
    found: list[tuple[Convolution, bool]] = []
    for convolution, sizes in convolutions.items():
        name = json.dumps([asdict(convolution), sizes])
        answer = known.get(name)
        if answer is None:
            answer = asked(convolution, sizes, device)
            if answer is not None:
                answers[name] = answer
        if answer is not None:
            found.append((convolution, answer))
    if answers:
        _remember(path, known | answers)
    return Library(tuple(found))


def asked(convolution: Convolution, sizes: Sequence[int], device: torch.device) -> bool | None:
    """Whether the library rounds its operands to TF32, by one run on this device; None where it cannot be run."""
    batch, channels, *spatial = sizes
    drawn = (convolution.inputs * convolution.groups, convolution.outputs // convolution.groups)
    first = drawn if convolution.transposed else (convolution.outputs, convolution.inputs)
    try:
        generator = torch.Generator(device).manual_seed(0)
        x = torch.randn((min(batch, SAMPLES), channels, *spatial), generator=generator, device=device)
        weight = torch.randn((*first, *convolution.kernel), generator=generator, device=device)
        with torch.no_grad():
            result = _run(convolution, x, weight)[:1].double()
            exact = _run(convolution, x[:1].double(), weight.double())
        error = float((result - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    except RuntimeError:  # out of memory, or an operator that the GPU lacks
        return None
    return error > ROUNDED


def _run(convolution: Convolution, x: Tensor, weight: Tensor) -> Tensor:
    c, more = convolution, [0] * len(convolution.kernel)
    return torch.ops.aten.convolution.default(
        x, weight, None, list(c.stride), list(c.padding), list(c.dilation), c.transposed, more, c.groups
    )


def _cache_file() -> Path:
    back, gpu = torch.backends.cudnn, torch.cuda.get_device_name()
    facts = [__version__, torch.__version__, str(back.version()), gpu, str(back.benchmark), str(back.enabled)]
    return cache_root() / "arithmetic" / f"{hashlib.sha256(chr(0).join(facts).encode()).hexdigest()[:24]}.json"


def _recalled(path: Path) -> dict[str, bool]:
    try:
        private(cache_root())
        return {str(name): bool(answer) for name, answer in json.loads(path.read_text()).items()}
    except (OSError, RuntimeError, ValueError, AttributeError):  # nothing there, or nothing that can be read
        return {}


def _remember(path: Path, answers: Mapping[str, bool]) -> None:
    """Keep them if that is possible; a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError, RuntimeError):
        private(private(cache_root()) / path.parent.name)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            json.dump(dict(answers), file, indent=2)
        os.replace(file.name, path)
