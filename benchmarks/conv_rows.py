"""Convolutions of many channels, alone: warp-level tiles, warpgroup tiles eight columns wide and along rows; and the library's.

PYTHONPATH=src:tests python3 benchmarks/conv_rows.py [--tiles N of each form, 3] [--seconds N] [--only WORD] [--operands KIND]
PYTHONPATH=src:tests python3 benchmarks/conv_rows.py --predict ...        (no GPU: what is expected)

--operands: tf32 (as it is by default), scaled (fp16 in TF32's place), parts (two bf16 numbers), bfloat16, float16.
In the rows: what was measured and expected, and the tile. Every tile is compared with float64 on its first and last sample.
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
from conv_transposed import PLAIN, conv, library_times, transposed, words
from founding import median_ms
from kernels.conv.reference import convolved, dtype_of, explain, operands, stored

from fusewright.codegen.mma.conv import Conv, Epilogue, OverChannels, Tile, candidate_tiles, conv_kernel
from fusewright.codegen.mma.conv_tiles import for_sizes, predicted_ms

SOFTMAX = Epilogue(reduce=OverChannels("LogSumExp", keep=True))
CASES = {
    "image 64->128, 3: rows of 126": (conv(2, 64, 128, 3), (64, 128, 128), PLAIN),
    "image 64->128, 3: rows of 128": (replace(conv(2, 64, 128, 3), padding=(1, 1)), (64, 128, 128), PLAIN),
    "image 64->64, 3: rows of 62": (conv(2, 64, 64, 3), (128, 64, 64), PLAIN),
    "image 256->256, 3: rows of 56": (replace(conv(2, 256, 256, 3), padding=(1, 1)), (16, 56, 56), PLAIN),
    "volume 32->64, 3: rows of 62": (conv(3, 32, 64, 3), (16, 32, 64, 64), PLAIN),
    "line 64->128, 3: rows of 16382": (conv(1, 64, 128, 3), (64, 16384), PLAIN),
    "transposed image 64->64, 4 by 1: rows of 131": (replace(conv(2, 64, 64, 4), transposed=True), (64, 128, 128), PLAIN),
    "transposed image 64->64, 3 by 1: rows of 130": (replace(conv(2, 64, 64, 3), transposed=True), (64, 128, 128), PLAIN),
    "transposed image 64->128, 4 by 2": (transposed(2, 64, 128, 4, 1), (64, 64, 64), PLAIN),
    "transposed image 64->128, 4 by 2, softmax": (transposed(2, 64, 128, 4, 1), (64, 64, 64), SOFTMAX),
    "transposed image 64->64, 3 by 2: rows of 256": (transposed(2, 64, 64, 3, 1, 1), (64, 128, 128), PLAIN),
    "transposed volume 64->128, 3 by 2: rows of 47": (transposed(3, 64, 128, 3, 1), (8, 24, 24, 24), PLAIN),
    "transposed volume 32->64, 3 by 2: rows of 64": (transposed(3, 32, 64, 3, 1, 1), (16, 16, 32, 32), PLAIN),
}


OPERANDS: dict[str, dict[str, object]] = {
    "tf32": {}, "scaled": {"scaled": True}, "parts": {"bf16_parts": True},
    "bfloat16": {"dtype": "bfloat16"}, "float16": {"dtype": "float16"},
}  # fmt: skip


def form(tile: Tile) -> str:
    if not tile.warpgroups:
        return "warps"
    return ("rows" if tile.fragments[2] > 1 else "columns") + (" with producers" if tile.producers else "")


def chosen(of: Conv, epilogue: Epilogue, sizes: tuple[int, ...], count: int) -> list[tuple[float, Tile]]:
    """The best tiles by prediction of each form, each of another shape."""
    found = sorted(((predicted_ms(of, epilogue, sizes, t), t) for t in candidate_tiles(of, epilogue)), key=lambda pair: pair[0])
    kept: dict[str, dict[tuple[object, ...], tuple[float, Tile]]] = {}
    for ms, t in found:
        kept.setdefault(form(t), {}).setdefault((t.channel_tiles, t.fragments, t.warps_c, t.warps, t.blocks_per_sm), (ms, t))
    limit = {"warps": 1, "rows": 2, "columns": 2}
    return [pair for name, of_form in kept.items() for pair in list(of_form.values())[: limit.get(name, count)]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240.0, help="what is not timed by then is left out")
    parser.add_argument("--only", default="")
    parser.add_argument("--operands", choices=OPERANDS, default="tf32")
    parser.add_argument("--predict", action="store_true")
    arguments = parser.parse_args()
    cases = {
        name: (for_sizes(replace(of, **OPERANDS[arguments.operands]), epilogue, sizes), sizes, epilogue)
        for name, (of, sizes, epilogue) in CASES.items() if arguments.only in name
    }  # fmt: skip
    if arguments.predict:
        for name, (of, sizes, epilogue) in cases.items():
            print(name)
            for ms, tile in chosen(of, epilogue, sizes, arguments.tiles):
                print(f"  {ms:.3f}  {words(tile)}, {tile.chunk} deep, {form(tile)}")
        return
    started, flush = time.perf_counter(), torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    print(torch.cuda.get_device_name(), torch.__version__, "cuDNN", torch.backends.cudnn.version())
    with ThreadPoolExecutor(16) as pool, torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        work = []
        for i, (name, (of, sizes, epilogue)) in enumerate(cases.items()):
            made = [(ms, tile, conv_kernel("k", of, epilogue, tile)) for ms, tile in chosen(of, epilogue, sizes, arguments.tiles)]
            rows = [(*row, pool.submit(built, row[2], Path(folder), f"k{i}_{j}")) for j, row in enumerate(made)]
            work.append((name, of, sizes, epilogue, rows))
        for name, of, sizes, epilogue, rows in work:
            if time.perf_counter() - started > arguments.seconds:
                print(f"{name}: left out")
                continue
            x, w, b = (None if t is None else t.cuda() for t in operands(of, sizes[0], sizes[1:]))
            out_shape, some = (sizes[0], of.out_channels, *of.out_sizes(sizes[1:])), [0, sizes[0] - 1]
            named = dict(zip(("in_d", "in_h", "in_w")[3 - of.dims :], sizes[1:], strict=True)) | {"batch": sizes[0]}
            positions = prod(sizes) if of.transposed else prod(out_shape) // of.out_channels  # each meets every weight once
            moved_ms = 1e-9 * of.item_bytes * (x.numel() + prod(out_shape)) / 4.19
            floor = f"{moved_ms:.3f} ms to move, {2e-9 * w.numel() * positions / 395.0:.3f} to multiply in TF32"
            print(f"{name}: {floor}, {library_times(of, x, w, b, flush).strip()}")
            for expected, tile, text, library in rows:
                out = torch.full(out_shape, float("nan"), dtype=dtype_of(of), device="cuda")
                run = ready(library.result(), text, {"input": x, "weight": w, "out": out, "bias": b}, named)
                run()
                value, allowed = convolved(of, x[some], w, b, tile.warpgroups)
                if epilogue is SOFTMAX:  # the identity behind it: elements wait for a total that nobody reads
                    allowed = allowed + 1e-6
                wrong = explain(out[some], value, stored(of, value, allowed))
                ms = median_ms(run, flush)
                print(f"  {ms:.3f} ({expected:.3f})  {words(tile)}, {tile.chunk} deep{f'  WRONG: {wrong}' if wrong else ''}", flush=True)
            del x, w, b, out
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
