"""Strided transposed convolutions, and others whose rows begin anywhere in memory, alone: tile by tile, and the library's.

PYTHONPATH=src:tests python3 benchmarks/conv_transposed.py [tiles of each, 4]
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from conv_few_channels import built, ready
from founding import median_ms
from kernels.conv.reference import convolved, explain, operands, operator

from fusewright.codegen.mma.conv import Conv, Epilogue, Pointwise, Tile, candidate_tiles, conv_kernel
from fusewright.codegen.mma.conv_spec import VALUE
from fusewright.codegen.mma.conv_tiles import best_tile, for_sizes, predicted_ms
from fusewright.ir.expr import Function, Name
from fusewright.ir.stmt import const

PLAIN, SIGMOID = Epilogue(), Function("sigmoid_fast")
SIGMOIDS = Epilogue(
    before=Pointwise(
        Function("tanh_fast")(Name("b")),
        (const("float", "a", SIGMOID(VALUE)), const("float", "b", Name("a") * SIGMOID(Name("a")) + Name("a"))),
    )
)


def conv(dims: int, channels: int, out: int, kernel: int) -> Conv:
    return Conv(dims, channels, out, (kernel,) * dims, (1,) * dims, (0,) * dims, (1,) * dims)


def transposed(dims: int, channels: int, out: int, kernel: int, padding: int = 0, more: int = 0) -> Conv:
    strides = (2,) * dims
    return replace(
        conv(dims, channels, out, kernel),
        stride=strides,
        padding=(padding,) * dims,
        output_padding=(more,) * dims,
        transposed=True,
    )


CASES = {
    "transposed line 128->64, 4 by 2: 16x16384": (transposed(1, 128, 64, 4, 1), (16, 16384), PLAIN),
    "transposed volume 16->32, 3 by 2: 16x16x40x40, rows of 81": (transposed(3, 16, 32, 3), (16, 16, 40, 40), PLAIN),
    "the same, sigmoids behind it": (transposed(3, 16, 32, 3), (16, 16, 40, 40), SIGMOIDS),
    "the same, rows of 80": (transposed(3, 16, 32, 3, 1, 1), (16, 16, 40, 40), PLAIN),
    "transposed image 64->64, 4 by 2: 32x64x64": (transposed(2, 64, 64, 4, 1), (32, 64, 64), PLAIN),
    "transposed image 64->32, 3 by 2: 32x64x64, rows of 129": (transposed(2, 64, 32, 3), (32, 64, 64), PLAIN),
    "image 64->64, 3: 64x128x128, rows of 126": (conv(2, 64, 64, 3), (64, 128, 128), PLAIN),
    "image 32->64, 3: 64x112x112, rows of 110": (conv(2, 32, 64, 3), (64, 112, 112), PLAIN),
    "volume 16->32, 3: 8x24x56x56, rows of 54": (conv(3, 16, 32, 3), (8, 24, 56, 56), PLAIN),
}


def words(tile: Tile) -> str:
    form = f"{tile.weights}{' alone' if tile.alone else ''}{' warpgroup' if tile.warpgroups else ''}"
    form += f" and producers, {tile.stages} stages" if tile.producers else ""
    fragments, warps = ("x".join(map(str, three)) for three in (tile.fragments, tile.warps))
    return f"{tile.channel_tiles} of {fragments}, {tile.warps_c}x{warps} warps x {tile.blocks_per_sm}, {form}"


def chosen(of: Conv, epilogue: Epilogue, sizes: tuple[int, ...], count: int) -> list[tuple[float, Tile]]:
    """The tile that is taken, and the best of each other shape."""
    found = sorted(
        ((predicted_ms(of, epilogue, sizes, t), t) for t in candidate_tiles(of, epilogue)), key=lambda pair: pair[0]
    )
    kept: dict[tuple[object, ...], tuple[float, Tile]] = {}
    best = best_tile(of, epilogue, sizes)
    for ms, t in [(predicted_ms(of, epilogue, sizes, best), best), *found]:
        kept.setdefault((t.channel_tiles, t.fragments, t.warps_c, t.alone, t.warpgroups), (ms, t))
    return list(kept.values())[:count]


def library_times(of: Conv, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, flush: torch.Tensor) -> str:
    apply, last = (
        operator(of),
        {2: torch.channels_last, 3: torch.channels_last_3d}.get(of.dims, torch.contiguous_format),
    )
    last_x, last_w = x.contiguous(memory_format=last), w.contiguous(memory_format=last)
    plain, other = median_ms(lambda: apply(x, w, b), flush), median_ms(lambda: apply(last_x, last_w, b), flush)
    return f"  library: {plain:.4f} ms, channels last {other:.4f}"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    started, flush = time.perf_counter(), torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.get_device_name(), torch.__version__, "cuDNN", torch.backends.cudnn.version())
    with ThreadPoolExecutor(16) as pool, torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        work = []
        for i, (name, (of, sizes, epilogue)) in enumerate(CASES.items()):
            of = for_sizes(of, epilogue, sizes)
            made = [(ms, tile, conv_kernel("k", of, epilogue, tile)) for ms, tile in chosen(of, epilogue, sizes, count)]
            rows = [(*row, pool.submit(built, row[2], Path(folder), f"k{i}_{j}")) for j, row in enumerate(made)]
            work.append((name, of, sizes, epilogue, rows))
        for name, of, sizes, epilogue, rows in work:
            x, w, b = (None if t is None else t.cuda() for t in operands(of, sizes[0], sizes[1:]))
            out_shape, some = (sizes[0], of.out_channels, *of.out_sizes(sizes[1:])), [0, sizes[0] - 1]
            named = dict(zip(("in_d", "in_h", "in_w")[3 - of.dims :], sizes[1:], strict=True)) | {"batch": sizes[0]}
            print(f"{name}: {4e-9 * (x.numel() + prod(out_shape)) / 4.1:.4f} ms to move")
            for expected, tile, text, library in rows:
                out = torch.full(out_shape, float("nan"), device="cuda")
                run = ready(library.result(), text, {"input": x, "weight": w, "out": out, "bias": b}, named)
                run()
                value, allowed = convolved(of, x[some], w, b, tile.warpgroups)
                wrong = (
                    explain(out[some], value, allowed)
                    if epilogue is PLAIN
                    else None
                    if out.isfinite().all()
                    else "not finite"
                )
                ms = median_ms(run, flush)
                print(
                    f"  {ms:.4f} ms ({expected:.4f} expected)  {words(tile)}{f'  WRONG: {wrong}' if wrong else ''}",
                    flush=True,
                )
            if epilogue is PLAIN:
                print(library_times(of, x, w, b, flush))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
