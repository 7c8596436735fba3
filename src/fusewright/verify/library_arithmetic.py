"""What PyTorch's library computes float32 convolutions in, where the flags allow TF32: cuDNN does not always use it.

On a GPU each convolution of a model is asked: run once at its own sizes and compared with float64, and what was found is kept in
the cache. What the library computes in float32 is asked again on channels-last data, for which it has other kernels, and so are
gradients. Elsewhere the rule in `schedule/library.py` answers: one place for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import prod
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
BELOW_TF32 = 0.9 * 2.0**-11  # of 1: less than half of its last bit
FEW = 3  # samples: the library chooses by the batch too, and verification runs small ones
MOST_ELEMENTS = 1 << 25  # of an input whose gradients are asked about: float64's take eight bytes each, several times


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

    def answer_to(question: str, convolution: Convolution, ask: Callable[[], bool | None]) -> bool | None:
        name = json.dumps([asdict(convolution), convolutions[convolution], *([question] if question else [])])
        answer = known.get(name)
        if answer is None:
            answer = ask()
            if answer is not None:
                answers[name] = answer
        return answer

    def rounds(each: Convolution, channels_last: bool) -> bool | None:
        question = "channels-last" if channels_last else ""
        return answer_to(question, each, lambda: asked(each, convolutions[each], device, channels_last))

    def rounds_gradients(each: Convolution) -> bool | None:
        return answer_to("gradients, channels-last", each, lambda: gradients_asked(each, convolutions[each], device))

    def rounds_weight_gradient(each: Convolution) -> bool | None:
        return answer_to("gradient of the weight", each, lambda: weight_gradient_asked(each, convolutions[each], device))

    found = {each: answer for each in convolutions if (answer := rounds(each, False)) is not None}
    images = [each for each in found if len(each.kernel) > 1]  # or volumes: the kind that may lie channels-last
    coarser = frozenset(each for each in images if not found[each] and rounds(each, True))
    coarser_gradients = frozenset(each for each in images if rounds_gradients(each))
    tensor_cores = [each for each in found if not each.is_depthwise]  # ours compute no others
    weights = {each: answer for each in tensor_cores if (answer := rounds_weight_gradient(each)) is not None}
    if answers:
        _remember(path, known | answers)
    return Library(tuple(found.items()), coarser, coarser_gradients, tuple(weights.items()))


def asked(convolution: Convolution, sizes: Sequence[int], device: torch.device, channels_last: bool = False) -> bool | None:
    """Whether the library rounds its operands to TF32, by one run on this device; None where it cannot be run."""
    try:
        # At the model's own batch: an H200 rounds 16 channels, 3×3, at a batch of 64 and not at 4 (benchmarks/layout_arithmetic.py).
        x, weight = _drawn(convolution, sizes, device)
        x = _to_channels_last(x) if channels_last else x
        with torch.no_grad():
            result = _run(convolution, x, weight)[:1].double()
            exact = _run(convolution, x[:1].double(), weight.double())
        return _is_rounded(result, exact)
    except RuntimeError:  # out of memory, or an operator that the GPU lacks
        return None


def gradients_asked(convolution: Convolution, sizes: Sequence[int], device: torch.device) -> bool | None:
    """Whether it rounds the operands of a gradient on channels-last data, and not on plain data; None where it cannot be run."""
    most = max(1, MOST_ELEMENTS * sizes[0] // max(1, prod(sizes)))
    try:
        return any(_rounds_gradients(convolution, (batch, *sizes[1:]), device) for batch in {min(sizes[0], most), min(sizes[0], FEW)})
    except RuntimeError:  # as above
        return None


def weight_gradient_asked(convolution: Convolution, sizes: Sequence[int], device: torch.device) -> bool | None:
    """Whether it rounds the operands of the weight's gradient on plain data, as eager calls it; None where it cannot be run.

    At the model's own batch, and so without float64: inputs are 1 and less than half of TF32's last bit, upstream gradients 1 or -1.
    Rounded, they add up to whole numbers."""
    try:
        with torch.no_grad():
            x, weight = _drawn(convolution, sizes, device)
            x = 1 + x.abs().frac() * BELOW_TF32
            upstream = torch.randint_like(_run(convolution, x, weight), 2) * 2 - 1
            found = _gradients(convolution, x, weight, upstream, of_input=False)[1].double()
        positions = (x if convolution.transposed else upstream).numel() / found.shape[0]
        off = float((found - found.round()).square().mean().sqrt())
        return off < 0.1 * min(0.25 * BELOW_TF32 * positions**0.5, 0.25)
    except RuntimeError:  # as above
        return None


def _rounds_gradients(convolution: Convolution, sizes: Sequence[int], device: torch.device) -> bool:
    with torch.no_grad():
        x, weight = _drawn(convolution, sizes, device)
        upstream = torch.randn_like(_run(convolution, x, weight))
        exact = _gradients(convolution, x.double(), weight.double(), upstream.double())
        found = _gradients(convolution, _to_channels_last(x), weight, _to_channels_last(upstream))
        channels_last_rounds = [_is_rounded(*pair) for pair in zip(found, exact, strict=True)]
        if not any(channels_last_rounds):
            return False
        plain = [_is_rounded(*pair) for pair in zip(_gradients(convolution, x, weight, upstream), exact, strict=True)]
    return any(there and not here for there, here in zip(channels_last_rounds, plain, strict=True))


def _drawn(convolution: Convolution, sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """An input and a weight."""
    generator = torch.Generator(device).manual_seed(0)
    inputs, outputs = convolution.inputs * convolution.groups, convolution.outputs // convolution.groups
    first = (inputs, outputs) if convolution.transposed else (convolution.outputs, convolution.inputs)
    shapes = tuple(sizes), (*first, *convolution.kernel)
    x, weight = (torch.randn(shape, generator=generator, device=device) for shape in shapes)
    return x, weight


def _to_channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def _is_rounded(result: Tensor, exact: Tensor) -> bool:
    return float((result.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()) > ROUNDED


def _run(convolution: Convolution, x: Tensor, weight: Tensor) -> Tensor:
    c, more = convolution, [0] * len(convolution.kernel)
    return torch.ops.aten.convolution.default(
        x, weight, None, list(c.stride), list(c.padding), list(c.dilation), c.transposed, more, c.groups
    )


def _gradients(convolution: Convolution, x: Tensor, weight: Tensor, upstream: Tensor, of_input: bool = True) -> tuple[Tensor, Tensor]:
    """Of the input, where that is wanted, and of the weight."""
    c, more = convolution, [0] * len(convolution.kernel)
    settings = (list(c.stride), list(c.padding), list(c.dilation), c.transposed, more, c.groups)
    return torch.ops.aten.convolution_backward.default(upstream, x, weight, None, *settings, [of_input, True, False])[:2]


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
