"""Whether the library rounds a convolution's operands to TF32 in one memory layout and not in the other.

    python benchmarks/layout_arithmetic.py

For some convolutions and batch sizes, NCHW and channels-last: the rms error of the result over its rms, against float64, and the rms
error of the channel means (what a batch norm's running mean is made of) over their rms. A mean of n positions of zero-mean values
cancels to 1/sqrt(n) of them, and so does rounding noise where it is independent; the bias of truncated operands does not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fusewright.verify.library_arithmetic import ROUNDED

LAYOUTS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
BATCHES = (4, 8, 64)
CASES = (  # input channels, output channels, kernel, stride, width
    (64, 128, 1, 2, 56),  # a residual block's shortcut
    (128, 256, 1, 2, 28),
    (256, 512, 1, 2, 14),
    (64, 64, 1, 1, 56),
    (256, 64, 1, 1, 56),
    (64, 128, 3, 2, 56),
    (64, 64, 3, 1, 56),
    (128, 128, 3, 1, 28),
    (256, 256, 3, 1, 14),
    (512, 512, 3, 1, 7),
    (16, 64, 3, 1, 56),
    (3, 64, 7, 2, 112),
)


@dataclass(frozen=True)
class Errors:
    """Rms errors over rms values."""

    result: float
    mean: float

    @property
    def is_rounded(self) -> bool:
        return self.result > ROUNDED


def relative(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def measured(inputs: int, outputs: int, kernel: int, stride: int, width: int, batch: int) -> Iterator[tuple[str, Errors]]:
    generator = torch.Generator("cuda").manual_seed(7)
    x = torch.randn((batch, inputs, width, width), generator=generator, device="cuda")
    weight = torch.randn((outputs, inputs, kernel, kernel), generator=generator, device="cuda") / (inputs * kernel**2) ** 0.5

    def convolved(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(x, weight, stride=stride, padding=kernel // 2)

    exact = torch.cat([convolved(part, weight.double()) for part in x.double().split(8)])
    for name, layout in LAYOUTS.items():
        found = convolved(x.contiguous(memory_format=layout), weight)
        means = [t.double().mean((0, 2, 3)) for t in (found, exact)]
        yield name, Errors(relative(found, exact), relative(*means))


@torch.no_grad()
def main() -> None:
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print(f"TF32 allowed for convolutions: {torch.backends.cudnn.allow_tf32}; rounded where the error is above {ROUNDED:.0e}\n")
    print(f"{'convolution':34}{'batch':>6}" + "".join(f"{name + ' result':>22}{'mean':>10}  " for name in LAYOUTS))
    differ, biased, by_batch = [], [], []
    for case in CASES:
        inputs, outputs, kernel, stride, width = case
        words = f"{inputs} -> {outputs}, {kernel}x{kernel} stride {stride}, {width} wide"
        answers = []
        for batch in BATCHES:
            found = dict(measured(*case, batch))
            cells = (f"{e.result:16.1e} {'tf32' if e.is_rounded else 'fp32'} {e.mean:10.1e}  " for e in found.values())
            print(f"{words:34}{batch:6}" + "".join(cells))
            plain, last = found.values()
            answers.append((plain.is_rounded, last.is_rounded))
            if plain.is_rounded != last.is_rounded:
                differ.append(f"{words}, batch {batch}: {' '.join(n for n, e in found.items() if e.is_rounded)} alone rounds")
            biased += [f"{words}, batch {batch}, {name}" for name, e in found.items() if e.is_rounded and e.mean > 4 * e.result]
        if any(a != b for a, b in itertools.pairwise(answers)):
            by_batch.append(words)
    print()
    for line in (*differ, *(f"{line}: the mean errs more than 4 times as much as the result" for line in biased)):
        print(line)
    print(f"\nthe arithmetic depends on the batch size: {', '.join(by_batch) or 'of none'}")
    if differ:
        print("verdict: the library's arithmetic depends on the layout; it must be asked in the one that a variant uses")
    elif biased:
        print("verdict: both layouts round alike, but errors of one layout do not cancel in a mean")
    else:
        print("verdict: both layouts round alike and without bias: the budget of a mean must be looked at")


if __name__ == "__main__":
    main()
