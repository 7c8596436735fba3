"""What PyTorch's library computes float32 convolutions in, where the flags allow TF32: cuDNN does not always use it.

On a GPU each convolution of a model is asked: run once at its own sizes and compared with float64, and what was found is kept in
the cache. What the library computes in float32 is asked again on channels-last data, for which it has other kernels. Elsewhere the
rule below answers: one place for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from .. import __version__
from ..frontend import stand_ins
from ..options import cache_root, private
from ..schedule.library import Convolution, Library, convolution_of
from .held import put_back

# Rms error over rms result, between float32's (1e-7 to 1e-6; 1e-5 for Winograd's transforms) and TF32's (2e-4, whatever the depth).
ROUNDED = 4e-5


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

    def answer_to(convolution: Convolution, sizes: tuple[int, ...], channels_last: bool) -> bool | None:
        name = json.dumps([asdict(convolution), sizes, *(["channels-last"] if channels_last else [])])
        answer = known.get(name)
        if answer is None:
            answer = asked(convolution, sizes, device, channels_last)
            if answer is not None:
                answers[name] = answer
        return answer

    found = {each: answer for each, sizes in convolutions.items() if (answer := answer_to(each, sizes, False)) is not None}
    exact = [each for each, rounds in found.items() if not rounds and len(each.kernel) > 1]
    coarser = frozenset(each for each in exact if answer_to(each, convolutions[each], True))
    if answers:
        _remember(path, known | answers)
    return Library(tuple(found.items()), coarser)


def asked(convolution: Convolution, sizes: Sequence[int], device: torch.device, channels_last: bool = False) -> bool | None:
    """Whether the library rounds its operands to TF32, by one run on this device; None where it cannot be run."""
    spatial = sizes[2:]
    drawn = (convolution.inputs * convolution.groups, convolution.outputs // convolution.groups)
    first = drawn if convolution.transposed else (convolution.outputs, convolution.inputs)
    try:
        generator = torch.Generator(device).manual_seed(0)
        # At the model's own batch: an H200 rounds 16 channels, 3×3, at a batch of 64 and not at 4 (benchmarks/layout_arithmetic.py).
        x = torch.randn(tuple(sizes), generator=generator, device=device)
        weight = torch.randn((*first, *convolution.kernel), generator=generator, device=device)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last if len(spatial) == 2 else torch.channels_last_3d)
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
