"""Convolutions of few input channels with taps one by one and folded into the depth, and the library's: convolution and relu.

PYTHONPATH=src:tests python3 benchmarks/conv_few_channels.py [tiles of each form, 2]
PYTHONPATH=src:tests python3 benchmarks/conv_few_channels.py --predict        (no GPU: what is expected)
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path

import torch
from founding import median_ms
from kernels.conv.harness import architecture, source_of
from kernels.conv.reference import convolved, explain, operands, operator

from fusewright.codegen.mma.conv import Conv, Epilogue, KernelText, Pointwise, Tile, candidate_tiles, conv_kernel
from fusewright.codegen.mma.conv_spec import VALUE
from fusewright.codegen.mma.conv_tiles import for_sizes, predicted_ms
from fusewright.ir import functions as fn

SECONDS = 110.0  # what is not timed by then is left out
RELU = Epilogue(before=Pointwise(fn.larger(VALUE, 0.0)))


def images(channels: int, out: int, kernel: int, stride: int = 1, padding: int = 0, bias: bool = True) -> Conv:
    return Conv(2, channels, out, (kernel,) * 2, (stride,) * 2, (padding,) * 2, (1, 1), bias=bias)


CASES = {
    "3->64 7x7 stride 2, 64x224x224": (images(3, 64, 7, 2, 3, bias=False), (64, 224, 224)),
    "3->16 3x3, 128x32x32": (images(3, 16, 3, 1, 1), (128, 32, 32)),
    "3->64 3x3, 32x224x224": (images(3, 64, 3, 1, 1), (32, 224, 224)),
    "1->6 5x5, 1024x28x28": (images(1, 6, 5, 1, 2), (1024, 28, 28)),
    "3->24 3x3x3, 16x24x32x32": (Conv(3, 3, 24, (3,) * 3, (1,) * 3, (0,) * 3, (1,) * 3), (16, 24, 32, 32)),
    "3->32 3x3 stride 2, 64x224x224": (images(3, 32, 3, 2, 1, bias=False), (64, 224, 224)),
    "3->64 11x11 stride 4, 64x224x224": (images(3, 64, 11, 4, 2), (64, 224, 224)),
    **{f"{c}->64 3x3, 32x128x128": (images(c, 64, 3, 1, 1), (32, 128, 128)) for c in (1, 2, 4, 5, 6, 7, 12)},
}


def chosen(conv: Conv, sizes: tuple[int, ...], folded: bool, count: int) -> list[tuple[float, Tile]]:
    """The tiles of one form that are expected to be fastest, each of another shape."""
    found = sorted(
        ((predicted_ms(conv, RELU, sizes, tile), tile) for tile in candidate_tiles(conv, RELU) if tile.folded == folded),
        key=lambda pair: pair[0],
    )
    kept: dict[tuple[object, ...], tuple[float, Tile]] = {}
    for ms, tile in found:
        many = tile.channel_tiles * prod(tile.fragments) > 16  # accumulators: few blocks to a multiprocessor
        kept.setdefault((tile.channel_tiles, many, tile.weights, tile.alone, tile.warpgroups), (ms, tile))
    return list(kept.values())[:count]


def built(text: KernelText, folder: Path, name: str) -> ctypes.CDLL:
    path = folder / f"{name}.cu"
    path.write_text(source_of(text))
    command = ["nvcc", f"-arch={architecture()}", "-std=c++17", "-w", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*command, "-o", str(path.with_suffix(".so")), str(path)], check=True, capture_output=True)
    return ctypes.CDLL(str(path.with_suffix(".so")))


def ready(library: ctypes.CDLL, text: KernelText, tensors: dict[str, torch.Tensor], sizes: dict[str, int]) -> Callable[[], None]:
    """The launch, with all that it takes prepared."""
    floats = {name: int(count) + text.per_sample.get(name, 0) * sizes["batch"] for name, count in text.workspace.items()}
    tensors = tensors | {name: torch.empty(count, device="cuda") for name, count in floats.items()}
    pointers = {name: ctypes.c_void_p(tensor.data_ptr()) for name, tensor in tensors.items()}
    handed = [pointers[arg.name] if arg.is_pointer else ctypes.c_longlong(sizes[arg.name]) for arg in text.launcher_args]
    handed.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    launcher = library.k
    launcher.restype = ctypes.c_char_p

    def run(alive: dict[str, torch.Tensor] = tensors) -> None:
        message = launcher(*handed)
        if message:
            raise RuntimeError(message.decode())

    return run


def words(tile: Tile) -> str:
    form = "folded" if tile.folded else "warpgroup" if tile.warpgroups else "taps"
    warps = "x".join(map(str, (tile.warps_c, *tile.warps)))
    alone = " alone" if tile.alone else ""
    fragments = "x".join(map(str, tile.fragments))
    return f"{form}: {tile.channel_tiles} of {fragments}, {warps} warps x {tile.blocks_per_sm}, {tile.weights}{alone}"


def timed(conv: Conv, sizes: tuple[int, ...], tiles: list[tuple[float, Tile]], texts: list[tuple[KernelText, Future[ctypes.CDLL]]],
          flush: torch.Tensor) -> None:  # fmt: skip
    x, w, b = (None if t is None else t.cuda() for t in operands(conv, sizes[0], sizes[1:]))
    apply = operator(conv)
    some = [0, sizes[0] // 2, sizes[0] - 1]
    right = {even: convolved(conv, x[some], w, b, even) for even in (False, True)}  # warpgroup MMA rounds ties to even
    named = dict(zip(("in_d", "in_h", "in_w")[3 - conv.dims :], sizes[1:], strict=True)) | {"batch": sizes[0]}
    moved = 4e-9 * (x.numel() + sizes[0] * conv.out_channels * prod(conv.out_sizes(sizes[1:])))
    for (expected, tile), (text, library) in zip(tiles, texts, strict=True):
        out = torch.full((sizes[0], conv.out_channels, *conv.out_sizes(sizes[1:])), float("nan"), device="cuda")
        tensors = {"input": x, "weight": w, "out": out} | ({} if b is None else {"bias": b})
        run = ready(library.result(), text, tensors, named)
        run()
        torch.cuda.synchronize()
        value, allowed = right[tile.warpgroups]
        wrong = explain(out[some], value.relu(), allowed)
        ms = median_ms(run, flush)
        print(f"  {ms:.4f} ms ({expected:.4f} expected, {moved / ms:.2f} TB/s)  {words(tile)}{f'  WRONG: {wrong}' if wrong else ''}")
    layout = torch.channels_last_3d if conv.dims == 3 else torch.channels_last
    last_x, last_w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
    plain = median_ms(lambda: apply(x, w, b), flush)
    last = median_ms(lambda: apply(last_x, last_w, b), flush)
    both = median_ms(lambda: apply(x, w, b).relu_(), flush)
    print(f"  library: {plain:.4f} ms, channels last {last:.4f}, and relu {both:.4f}", flush=True)


def main() -> None:
    started = time.perf_counter()
    count = next((int(a) for a in sys.argv[1:] if a.isdigit()), 2)
    work = {}
    for name, (conv, sizes) in CASES.items():
        conv = for_sizes(conv, RELU, sizes)
        work[name] = conv, sizes, [pair for folded in (False, True) for pair in chosen(conv, sizes, folded, count)]
    if "--predict" in sys.argv:
        for name, (_, _, tiles) in work.items():
            print(name)
            for ms, tile in tiles:
                print(f"  {ms:.4f} ms expected  {words(tile)}")
        return
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.get_device_name(), torch.__version__, "cuDNN", torch.backends.cudnn.version())
    with ThreadPoolExecutor(16) as pool, torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        texts = {}
        for i, (name, (conv, _, tiles)) in enumerate(work.items()):
            made = [conv_kernel("k", conv, RELU, tile) for _, tile in tiles]
            texts[name] = [(text, pool.submit(built, text, Path(folder), f"k{i}_{j}")) for j, text in enumerate(made)]
        for name, (conv, sizes, tiles) in work.items():
            if time.perf_counter() - started > SECONDS:
                print(f"{name}: left out, {SECONDS:.0f} s are over")
                continue
            print(f"{name}{', written in runs' if conv.in_runs else ''}")
            timed(conv, sizes, tiles, texts[name], flush)
        for left in (library for made in texts.values() for _, library in made):
            left.cancel()
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
