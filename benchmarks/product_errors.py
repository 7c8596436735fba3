"""Errors of products by fp16 parts against float64 on a GPU: ordinary inputs beside the library's own, and ranges that fp16 does not have.

    PYTHONPATH=src python3 benchmarks/product_errors.py

`share` is the largest |error| / (K 2^-24 sum |a| |b|), which may be 1 at most. Needs a GPU, nvcc and torch.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from conv_founding import build, call, milliseconds, source_of

from fusewright.codegen.mma.conv import Epilogue
from fusewright.codegen.mma.product import Product, ProductTile, product_kernel

ROWS, DEPTH, COLUMNS = 512, 1024, 640


def drawn(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands as [rows, depth] and [columns, depth]."""
    a, b = (torch.randn(n, DEPTH, device="cuda") for n in (ROWS, COLUMNS))
    uniform = torch.rand(ROWS, DEPTH, device="cuda")
    match kind:
        case "uniform":
            return uniform, torch.rand_like(b)
        case "times 3" | "times 0.01":
            return a * float(kind.split()[1]), b
        case "minus 1":
            return a - 1, b
        case "shifted":
            return a + 100, b + 10
        case "lognormal":
            return torch.exp(4 * a), torch.exp(4 * b)
        case "rows of 2^-60 to 2^60":
            return a * torch.exp2(torch.linspace(-60, 60, ROWS, device="cuda"))[:, None], b
        case "depth of 2^-30 to 2^30":
            return a * torch.exp2(torch.linspace(-30, 30, DEPTH, device="cuda")), b
        case "one huge beside a zero":
            a[:, ::32] *= 1e12
            b[:, ::32] = 0
            return a, b
        case "denormals" | "all tiny" | "all huge":
            scale = {"denormals": 1e-40, "all tiny": 1e-25, "all huge": 1e17}[kind]
            return a * scale, b if kind == "denormals" else b * scale
        case "zeros":
            a[::3], b[::5] = 0, 0
            return a, b
        case "triangles":
            return a.tril(), b.tril()
        case "Inf and NaN":
            a[3, 7], a[200, 1000], b[17, 900] = float("inf"), float("nan"), float("-inf")
            return a, b
    return a, b


KINDS = ("normal", "uniform", "times 3", "times 0.01", "minus 1", "shifted", "lognormal", "rows of 2^-60 to 2^60", "depth of 2^-30 to 2^30",
         "one huge beside a zero", "denormals", "all tiny", "all huge", "zeros", "triangles", "Inf and NaN")  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    texts = {halves: product_kernel("k", Product(DEPTH, COLUMNS), Epilogue(), ProductTile(halves=halves)) for halves in (True, False)}
    with tempfile.TemporaryDirectory() as folder:
        libraries = {halves: build(Path(folder), f"k{halves}", source_of(text)) for halves, text in texts.items()}
        for kind in KINDS:
            a, b = drawn(kind)
            exact, size = a.double() @ b.double().t(), a.abs().double() @ b.abs().double().t()
            found, times = {"library": a @ b.t()}, {}
            for halves, text in texts.items():
                out = torch.full((ROWS, COLUMNS), -7.0, device="cuda")
                values = {"input": a, "weight": b, "out": out, "rows": ROWS}
                call(libraries[halves], text, values)
                found["fp16" if halves else "tf32"] = out
                times[halves] = milliseconds(lambda text=text, values=values, halves=halves: call(libraries[halves], text, values), 5)
            finite = exact.isfinite() & (size < 3e38)
            allowed = (DEPTH * 2.0**-24 * size + DEPTH * 2.0**-149)[finite]
            errors = {name: (y.double() - exact)[finite].abs() for name, y in found.items()}
            shares = {name: (error / allowed).nan_to_num(float("inf")).max().item() for name, error in errors.items()}
            same = bool(torch.equal(found["fp16"][~finite].isnan(), found["library"][~finite].isnan()))
            words = "  ".join(f"{name} {share:.2e}" for name, share in shares.items())
            words += f"  ms: {times[True]:.4f} by fp16, {times[False]:.4f} by TF32  not finite alike: {same}"
            print(f"{kind:<24} share: {words}", flush=True)


if __name__ == "__main__":
    main()
