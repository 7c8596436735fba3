"""Times the convolution kernels of the first two founding models, tile by tile, and checks each against fp64.

    PYTHONPATH=src python3 benchmarks/conv_founding.py [--tiles name,...] [--once]

Needs a GPU, nvcc and torch. Every tile is built, checked and timed (median of CUDA events, L2 flushed in between).
"""

from __future__ import annotations

import argparse
import ctypes
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from kernels.conv.founding import CONV1, CONV2, POOLED, STATISTICS, apply_epilogue  # noqa: E402
from kernels.conv.harness import source_of  # noqa: E402
from kernels.words import called  # noqa: E402

from fusewright.codegen.mma.conv import KernelText, Tile, conv_kernel  # noqa: E402
from fusewright.target.helpers import closure, device_texts  # noqa: E402

PEAK = """
__global__ void __launch_bounds__(256, 2) peak_kernel(float* out, int rounds) {
  float acc[16][4] = {};
  uint32_t a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x, 5};
  for (int r = 0; r < rounds; ++r)
#pragma unroll
    for (int k = 0; k < 16; ++k) mma_tf32(acc[k], a, b);
  float total = 0;
#pragma unroll
  for (int k = 0; k < 16; ++k) total += acc[k][0] + acc[k][1] + acc[k][2] + acc[k][3];
  out[blockIdx.x * 256 + threadIdx.x] = total;
}
extern "C" const char* peak(float* out, long long rounds, void* stream) {
  peak_kernel<<<264, 256, 0, (cudaStream_t)stream>>>(out, int(rounds));
  return launch_error();
}
"""


@dataclass(frozen=True)
class Variant:
    name: str
    tile: Tile
    nearest_even: bool = False  # to_tf32 as cvt.rn instead of cvt.rna
    apply: tuple[tuple[str, object], ...] = ()  # choices of the first model's epilogue
    stats: Tile | None = None  # the first model's first kernel, where it is cut otherwise
    patch: tuple[tuple[str, str], ...] = ()  # for experiments: text to replace in the source


def with_prelude(kernels: str) -> str:
    return "".join(device_texts(closure(called(kernels)))) + kernels


def rounding(source: str, nearest_even: bool) -> str:
    return source.replace("cvt.rna.tf32.f32", "cvt.rn.tf32.f32") if nearest_even else source


def patched(variant: Variant, text: KernelText) -> str:
    source = rounding(source_of(text), variant.nearest_even)
    for old, new in variant.patch:
        source = source.replace(old, new)
    return source


def build(folder: Path, label: str, source: str) -> ctypes.CDLL:
    path = folder / f"{label}.cu"
    path.write_text(source)
    library = path.with_suffix(".so")
    command = ["nvcc", "-arch=sm_90a", "-O3", "-std=c++17", "-w", "-shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v"]
    result = subprocess.run([*command, "-o", str(library), str(path)], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{label}: {result.stderr[-2000:]}")
    (folder / f"{label}.ptxas").write_text(result.stderr)
    return ctypes.CDLL(str(library))


def registers(folder: Path, label: str) -> str:
    """Registers and spilled bytes of the vector kernel."""
    lines = (folder / f"{label}.ptxas").read_text().splitlines()
    kernels = [k for k, line in enumerate(lines) if re.search(r"Compiling.*6kernel", line)]
    at = next((k for k in kernels if re.search(r"6kernelI?(Li4)?E", lines[k]) or "6kernelILi4ELi" in lines[k]), kernels[0])
    spill = lines[at + 2].split("bytes spill stores")[0].split(",")[-1].strip()
    return lines[at + 3].split("Used ")[1].split(" ")[0] + ("" if spill == "0" else f" spill {spill}")


def call(library: ctypes.CDLL, text: KernelText, values: dict) -> None:
    args = [
        ctypes.c_void_p(values[arg.name].data_ptr()) if arg.is_pointer else ctypes.c_longlong(values[arg.name])
        for arg in text.launcher_args
    ]
    launcher = getattr(library, text.name)
    launcher.restype = ctypes.c_char_p
    message = launcher(*args, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if message:
        raise RuntimeError(f"{text.name}: {message.decode()}")


FLUSH: list[torch.Tensor] = []


def milliseconds(run, repeats: int = 25) -> float:
    if not FLUSH:
        FLUSH.append(torch.empty(64 * 2**20, dtype=torch.int32, device="cuda"))
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        FLUSH[0].zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


NO_STAGING = (  # what is left when nothing is copied for the next step
    ("turn > 0) store_input", "in_d < 0) store_input"),
    ("k_block < K_BLOCKS - late) load_input", "in_d < 0) load_input"),
)


def slices_of(copies: int, seats: int) -> int:
    """As in the emitted file: blocks for one full wave."""
    return max(1, seats // copies)


def founding_tiles() -> tuple[list[Variant], list[Variant]]:
    alone = Tile(4, (1, 4, 1), (1, 1, 8), blocks_per_sm=2, weights="resident", alone=True)
    tall = replace(alone, fragments=(1, 8, 1), blocks_per_sm=1)
    shared = replace(alone, alone=False, warps=(1, 2, 4), early=1.0)
    free = (("clamp", False),)
    first = [
        Variant("tall+alone", alone, stats=tall),
        Variant("tall+alone_rn", alone, True, stats=tall),
        Variant("tall+alone_free", alone, True, free, stats=tall),
        Variant("tall+alone_free_u1", replace(alone, unrolled=1), True, free, stats=replace(tall, unrolled=1)),
        Variant(
            "tall+shared_r4",
            replace(shared, repeats=4),
            True,
            stats=replace(tall, fragments=(1, 6, 1), warps=(1, 1, 12)),
        ),
    ]
    four = Tile(1, (1, 16, 1), (1, 1, 1), 4, blocks_per_sm=3, weights="resident", warpgroups=True)
    short = replace(four, fragments=(1, 8, 1))
    first += [
        Variant("four_3_4", four, False, free, stats=replace(four, blocks_per_sm=4)),
        Variant("four_3_3", four, False, stats=four),
        Variant("short_5_5", replace(short, blocks_per_sm=5), False, free, stats=replace(short, blocks_per_sm=5)),
        Variant("short_4_5", replace(short, blocks_per_sm=4), False, free, stats=replace(short, blocks_per_sm=5)),
        Variant("short2_2_2", replace(short, warps=(1, 2, 1), blocks_per_sm=2), False, free,
                stats=replace(four, warps=(1, 1, 2), blocks_per_sm=2)),
        Variant("wide2_1_2", replace(four, warps=(1, 1, 3), blocks_per_sm=1), False, free,
                stats=replace(four, warps=(1, 1, 3), blocks_per_sm=1)),
        Variant("four_nostage", four, False, free, stats=replace(four, blocks_per_sm=4), patch=NO_STAGING),
    ]  # fmt: skip
    two = Tile(4, (2, 4, 1), (1, 2, 4), columns=9, early=1.0)
    wide = Tile(1, (2, 16, 1), (1, 1, 2), 4, warpgroups=True)
    second = [
        Variant("columns_9", two, True),
        Variant("unrolled_3", replace(two, unrolled=3), True),
        Variant("unrolled_1", replace(two, unrolled=1), True),
        Variant("unrolled_1_rna", replace(two, unrolled=1)),
        Variant("u3_rna", replace(two, unrolled=3)),
        Variant("u3_222", replace(two, unrolled=3, fragments=(2, 2, 2), warps=(1, 4, 2)), True),
        Variant("u3_single", replace(two, unrolled=3, together=False), True),
        Variant("u1_single", replace(two, unrolled=1, together=False), True),
        Variant("four_wide", wide),
        Variant("four_tall", replace(wide, warps=(1, 2, 1))),
        Variant("four_short", replace(wide, fragments=(2, 8, 1), warps=(1, 2, 2))),
        Variant("four_one", replace(wide, warps=(1, 1, 1))),
        Variant("wide_nostage", wide, patch=NO_STAGING),
        Variant("short_nostage", replace(wide, fragments=(2, 8, 1), warps=(1, 2, 2)), patch=NO_STAGING),
        Variant("wide_in_step", wide, patch=(("? warp / 4 % 2 : 0", "? 0 : 0"),)),
    ]
    return first, second


def worst(out: torch.Tensor, reference: torch.Tensor) -> float:
    assert not out.isnan().any(), "an element was not written"
    return (out.double() - reference).abs().max().item()


def in_turn(*steps) -> None:
    for step in steps:
        step()


def first_model(folder: Path, pool: ThreadPoolExecutor, variants: list[Variant], once: bool) -> None:
    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(8, 64, 3).cuda(), torch.nn.GroupNorm(16, 64).cuda()
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    torch.nn.init.normal_(norm.bias, 0, 0.2)
    x = torch.rand(128, 8, 128, 128, device="cuda")

    def eager(x, w, b, gamma, beta):
        y = F.conv2d(x, w, b)
        return torch.logsumexp(y + F.hardswish(torch.tanh(F.group_norm(y, 16, gamma, beta))), 1, keepdim=True)

    parameters = [p.detach() for p in (conv.weight, conv.bias, norm.weight, norm.bias)]
    reference = None if once else eager(x.double(), *(p.double() for p in parameters))
    texts = {}
    for v in variants:
        texts[v.name, "stats"] = conv_kernel("stats", CONV1, STATISTICS, v.stats or v.tile)
        texts[v.name, "apply"] = conv_kernel("apply", CONV1, apply_epilogue(**dict(v.apply)), v.tile)
    jobs = {
        key: pool.submit(
            build, folder, f"m1_{key[0]}_{key[1]}",
            patched(next(v for v in variants if v.name == key[0]), text),
        )
        for key, text in texts.items()
    }  # fmt: skip
    values = {
        "input": x, "weight": parameters[0], "bias": parameters[1], "gamma": parameters[2], "beta": parameters[3],
        "packed": torch.empty(1 << 20, device="cuda"),
        "batch": 128, "in_h": 128, "in_w": 128, "out": torch.empty(128, 1, 126, 126, device="cuda"),
    }  # fmt: skip
    if not once:
        print(
            f"model 1 eager: {milliseconds(lambda: eager(x, *parameters), 5):.3f} ms, "
            f"its error {worst(eager(x, *parameters), reference):.2e}, values near {reference.mean().item():.2f}"
        )
    print(f"{'tile':18} {'stats ms':>9} {'apply ms':>9} {'both':>7} {'error':>9}  registers (stats, apply)  smem")
    for v in variants:
        stats, apply = texts[v.name, "stats"], texts[v.name, "apply"]
        slices = eval(stats.slices.format(batch=128), {"_slices": slices_of})
        moments = torch.full((128, slices, 64, 3), float("nan"), device="cuda")
        values |= {"partials": moments, "moments": moments, "slices": slices, "moment_slices": slices}
        values["out"].fill_(float("nan"))
        run_stats = partial(call, jobs[v.name, "stats"].result(), stats, values)
        run_apply = partial(call, jobs[v.name, "apply"].result(), apply, values)
        run_stats()
        run_apply()
        if once:
            continue
        error = worst(values["out"], reference) if not v.patch else -1.0
        a, b = milliseconds(run_stats), milliseconds(run_apply)
        both = milliseconds(partial(in_turn, run_stats, run_apply))
        regs = ", ".join(registers(folder, f"m1_{v.name}_{k}") for k in ("stats", "apply"))
        print(f"{v.name:18} {a:9.4f} {b:9.4f} {both:7.4f} {error:9.2e}  {regs}  {apply.smem}", flush=True)


def second_model(folder: Path, pool: ThreadPoolExecutor, variants: list[Variant], once: bool) -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv3d(32, 64, 3, padding=1).cuda()
    x = torch.rand(4, 32, 32, 128, 128, device="cuda")

    def eager(x, w, b):
        return torch.relu(torch.logsumexp(F.max_pool3d(F.conv3d(x, w, b, padding=1), 2), 1, keepdim=True))

    parameters = [p.detach() for p in (conv.weight, conv.bias)]
    texts = {v.name: conv_kernel("pooled", CONV2, POOLED, v.tile) for v in variants}
    jobs = {
        v.name: pool.submit(build, folder, f"m2_{v.name}", patched(v, texts[v.name]))
        for v in variants
    }  # fmt: skip
    reference = None if once else eager(x[3:].double(), *(p.double() for p in parameters))
    out = torch.empty(4, 1, 16, 64, 64, device="cuda")
    if not once:
        print(
            f"model 2 eager: {milliseconds(lambda: eager(x, *parameters), 5):.3f} ms, "
            f"its error {worst(eager(x, *parameters)[3:], reference):.2e}, values near {reference.mean().item():.2f}"
        )
    print(f"{'tile':18} {'ms':>7} {'TFLOP/s':>8} {'error':>9}  registers  smem")
    for v in variants:
        text = texts[v.name]
        packed = torch.empty(eval(text.workspace["packed"]), device="cuda")
        values = {
            "input": x,
            "weight": parameters[0],
            "bias": parameters[1],
            "out": out,
            "packed": packed,
            "batch": 4,
            "in_d": 32,
            "in_h": 128,
            "in_w": 128,
        }
        out.fill_(float("nan"))
        run = partial(call, jobs[v.name].result(), text, values)
        run()
        if once:
            continue
        error = worst(out[3:], reference) if not v.patch else -1.0
        ms = milliseconds(run)
        print(
            f"{v.name:18} {ms:7.4f} {232e9 / ms / 1e9:8.1f} {error:9.2e}  "
            f"{registers(folder, f'm2_{v.name}')}  {text.smem}",
            flush=True,
        )


def tensor_peak(folder: Path) -> None:
    library = build(folder, "peak", with_prelude(PEAK))
    out = torch.empty(264 * 256, device="cuda")
    launcher = library.peak
    launcher.restype = ctypes.c_char_p
    rounds = 2000
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    run = partial(launcher, ctypes.c_void_p(out.data_ptr()), ctypes.c_longlong(rounds), stream)
    ms = milliseconds(run, 10)
    flops = 264 * 8 * rounds * 16 * 16 * 8 * 8 * 2
    print(f"m16n8k8 TF32 alone: {flops / ms / 1e9:.0f} TFLOP/s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiles", default="", help="only these, by name")
    parser.add_argument("--models", default="12")
    parser.add_argument("--once", action="store_true", help="launch each once, for a profiler")
    options = parser.parse_args()
    wanted = set(options.tiles.split(",")) - {""}
    first, second = ([v for v in variants if not wanted or v.name in wanted] for variants in founding_tiles())
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(16) as pool:
        if not options.once:
            tensor_peak(Path(folder))
        if "1" in options.models and first:
            first_model(Path(folder), pool, first, options.once)
        if "2" in options.models and second:
            second_model(Path(folder), pool, second, options.once)


if __name__ == "__main__":
    main()
