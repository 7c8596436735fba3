"""Gradients of convolutions' weights, alone: our kernels, several tiles of each, and the library's call on plain and channels-last data.

PYTHONPATH=src:tests python3 benchmarks/weight_gradients.py [--tiles N of each, 4] [--seconds N] [--only WORD]
PYTHONPATH=src:tests python3 benchmarks/weight_gradients.py --predict ...        (no GPU: what is expected)

In the rows: what was measured and expected, the tile, and the largest error over the rms against float64 on the first samples.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from conv_few_channels import built, ready
from conv_transposed import conv, transposed
from founding import median_ms

from fusewright.codegen.mma.conv_spec import Conv, triple
from fusewright.codegen.mma.weight_gradient import (
    GradientTile,
    WeightGradient,
    candidate_tiles,
    fits,
    gradient_ms,
    weight_gradient_kernel,
    with_slices,
    without_conflicts,
)
from fusewright.target.machine import H200

SOME = 2  # samples that are compared with float64
CASES = {  # the convolution, the batch and sizes of its input; whether operands are split, as the library does not round them
    "image 8->64, 3 (first founding model)": (conv(2, 8, 64, 3), (128, 128, 128), True),
    "volume 32->64, 3 (second founding model)": (replace(conv(3, 32, 64, 3), padding=(1, 1, 1)), (4, 32, 128, 128), False),
    "image 64->128, 3: rows of 126": (conv(2, 64, 128, 3), (64, 128, 128), False),
    "image 64->128, 3: rows of 128": (replace(conv(2, 64, 128, 3), padding=(1, 1)), (64, 128, 128), False),
    "image 64->128, 3, split": (conv(2, 64, 128, 3), (64, 128, 128), True),
    "image 3->64, 7 by 2": (replace(conv(2, 3, 64, 7), stride=(2, 2), padding=(3, 3)), (64, 224, 224), True),
    "image 256->256, 3: rows of 14": (replace(conv(2, 256, 256, 3), padding=(1, 1)), (64, 14, 14), False),
    "image 64->256, 1": (conv(2, 64, 256, 1), (32, 56, 56), False),
    "line 64->128, 5 by 2": (replace(conv(1, 64, 128, 5), stride=(2,)), (32, 16384), False),
    "transposed image 64->128, 4 by 2": (transposed(2, 64, 128, 4, 1), (64, 64, 64), False),
    "transposed volume 32->64, 3 by 2": (transposed(3, 32, 64, 3, 1, 1), (16, 16, 32, 32), False),
}


def positions_of(of: Conv, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return sizes if of.transposed else tuple(of.out_sizes(sizes))


def chosen(gradient: WeightGradient, batch: int, positions: tuple[int, ...], count: int) -> list[tuple[float, GradientTile]]:
    """The best tiles by prediction, each with other warps."""
    able = [tile for tile in candidate_tiles(gradient, positions, H200) if fits(gradient, tile, H200)]
    sliced = [with_slices(gradient, tile, batch, positions, H200) for tile in able]
    found = sorted(((gradient_ms(gradient, tile, batch, positions), tile) for tile in sliced), key=lambda pair: pair[0])
    kept: dict[tuple[int, ...], tuple[float, GradientTile]] = {}
    for ms, tile in found:
        kept.setdefault((tile.tiles, tile.fragments, tile.warps_m, tile.warps_n, tile.warps_k), (ms, tile))
    return [(ms, without_conflicts(gradient, tile, H200)) for ms, tile in list(kept.values())[:count]]


def words(tile: GradientTile) -> str:
    warps = f"{tile.warps_m}x{tile.warps_n}x{tile.warps_k} warps of {tile.tiles}x{tile.fragments}"
    return f"{warps}, {tile.high}x{tile.wide} positions, {tile.stages} stages, {tile.slices} slices"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=200.0, help="what is not timed by then is left out")
    parser.add_argument("--only", default="")
    parser.add_argument("--predict", action="store_true")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if arguments.only in name}
    tiles = {
        name: chosen(WeightGradient(of, split), batch, positions_of(of, tuple(sizes)), arguments.tiles)
        for name, (of, (batch, *sizes), split) in cases.items()
    }
    if arguments.predict:
        for name, found in tiles.items():
            print(name)
            for ms, tile in found:
                print(f"  {ms:.3f}  {words(tile)}")
        return
    started, flush = time.perf_counter(), torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.get_device_name(), torch.__version__, "cuDNN", torch.backends.cudnn.version())
    with ThreadPoolExecutor(16) as pool, torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        work = {}
        for i, (name, found) in enumerate(tiles.items()):
            of, _, split = cases[name]
            texts = [weight_gradient_kernel("k", WeightGradient(of, split), tile) for _, tile in found]
            work[name] = [(text, pool.submit(built, text, Path(folder), f"k{i}_{j}")) for j, text in enumerate(texts)]
        for name, (of, (batch, *sizes), split) in cases.items():
            if time.perf_counter() - started > arguments.seconds:
                print(f"{name}: left out")
                continue
            measure(name, of, batch, tuple(sizes), split, tiles[name], work[name], flush)
    print(f"{time.perf_counter() - started:.0f} s")


def measure(name: str, of: Conv, batch: int, sizes: tuple[int, ...], split: bool, tiles: list, work: list, flush: torch.Tensor) -> None:
    gradient, out_sizes = WeightGradient(of, split), tuple(of.out_sizes(sizes))
    x = torch.randn(batch, of.in_channels, *sizes, device="cuda")
    above = torch.randn(batch, of.out_channels, *out_sizes, device="cuda")
    rows, columns = gradient.channels
    weight = torch.empty(rows, columns // of.groups, *of.kernel, device="cuda")
    settings = [list(of.stride), list(of.padding), list(of.dilation), of.transposed, list(of.output_padding[-of.dims :]), of.groups]

    def library(upstream: torch.Tensor, read: torch.Tensor, of_weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.convolution_backward(upstream, read, of_weight, None, *settings, [False, True, False])[1]

    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(of.dims, torch.contiguous_format)
    plain = median_ms(lambda: library(above, x, weight), flush)
    moved = [t.contiguous(memory_format=last) for t in (above, x)]
    other = median_ms(lambda: library(*moved, weight), flush)
    moved.clear()
    exact, theirs = (library(above[:SOME].to(kind), x[:SOME].to(kind), weight.to(kind)).double() for kind in (torch.float64, torch.float32))
    positions = batch * prod(positions_of(of, sizes))
    floor_ms = 4e-9 * (x.numel() + above.numel()) / 4.14, (3 if split else 1) * 2e-9 * positions * gradient.weights / 395.0
    print(f"{name}: {floor_ms[0]:.3f} ms to read, {floor_ms[1]:.3f} to multiply; library {plain:.3f} ms ({error(theirs, exact):.1e}), "
          f"on channels-last data {other:.3f}")  # fmt: skip
    still, over = (x, above) if of.transposed else (above, x)
    sizes_of = (*triple(tuple(still.shape[2:]), 1), *triple(tuple(over.shape[2:]), 1))
    named = dict(zip(("out_d", "out_h", "out_w", "in_d", "in_h", "in_w"), sizes_of, strict=True))
    for (expected, tile), (text, built_library) in zip(tiles, work, strict=True):
        out = torch.full_like(weight, float("nan"))
        tensors = {"upstream": still, "input": over, "out": out}
        ready(built_library.result(), text, tensors, named | {"batch": SOME})()
        off = error(out.double(), exact)
        ms = median_ms(ready(built_library.result(), text, tensors, named | {"batch": batch}), flush)
        print(f"  {ms:.3f} ({expected:.3f})  {words(tile)}  error {off:.1e}", flush=True)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).abs().max() / exact.square().mean().sqrt())


if __name__ == "__main__":
    main()
