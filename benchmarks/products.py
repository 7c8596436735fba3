"""Times our float32 matrix products against the library's, shape by shape and split by split, and checks each against fp64.

    PYTHONPATH=src python3 benchmarks/products.py [--shapes name,...]

Needs a GPU, nvcc and torch. Every kernel is built, checked and timed (median of CUDA events, L2 flushed in between). `error` is the largest
against fp64, as a multiple of the library's own; `predicted` is what `product_ms` says.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from conv_founding import build, call, milliseconds, registers, source_of

from fusewright.codegen.mma.conv import Epilogue
from fusewright.codegen.mma.product import Product, ProductTile, product_kernel, product_ms, product_tile

SHAPES = {  # rows, depth, columns, whether the matrix lies by columns
    "square 4096": (4096, 4096, 4096, False),
    "square 4096, by columns": (4096, 4096, 4096, True),
    "square 1024": (1024, 1024, 1024, False),
    "mlp up": (8192, 1024, 4096, False),
    "mlp down": (8192, 4096, 2048, False),
    "classes": (8192, 2048, 1000, False),
    "few rows": (128, 8192, 1024, False),
    "a thousand rows": (1024, 8192, 8192, False),
    "square 8192": (8192, 8192, 8192, False),
    "narrow": (16384, 1024, 64, False),
    "shallow": (65536, 128, 512, False),
    "odd": (4093, 1021, 2039, False),
}


@dataclass(frozen=True)
class Case:
    name: str
    rows: int
    product: Product
    tile: ProductTile


def cases(wanted: set[str]) -> list[Case]:
    found = []
    for name, (rows, depth, columns, transposed) in SHAPES.items():
        if wanted and name not in wanted:
            continue
        product = Product(depth, columns, transposed=transposed)
        chosen = product_tile(product, rows)
        splits = dict.fromkeys((chosen.splits, 1, 2, 4))
        found += [Case(name, rows, product, ProductTile(chosen.quartets, chosen.fragments, s)) for s in splits]
    return found


def measured(case: Case, library, folder: Path, label: str) -> str:
    product, rows = case.product, case.rows
    torch.manual_seed(0)
    x = torch.randn(rows, product.depth, device="cuda")
    matrix = torch.randn(product.columns, product.depth, device="cuda") / product.depth**0.5
    weight = matrix.t().contiguous() if product.transposed else matrix
    right = weight if product.transposed else weight.t()
    out = torch.full((rows, product.columns), float("nan"), device="cuda")
    sums = torch.full((case.tile.splits * rows * product.columns,), float("nan"), device="cuda")
    text = product_kernel("k", product, Epilogue(), case.tile)
    values = {"input": x, "weight": weight, "out": out, "sums": sums, "rows": rows}
    call(library, text, values)
    some = torch.arange(0, rows, max(1, rows // 64), device="cuda")  # fp64 products of all rows would take long
    exact = x[some].double() @ right.double()
    ours, theirs = ((y[some].double() - exact).abs().max().item() for y in (out, x @ right))
    ms, library_ms = milliseconds(lambda: call(library, text, values)), milliseconds(lambda: torch.mm(x, right))
    rate = 2e-9 * rows * product.depth * product.columns / ms
    return (
        f"{case.name:<26} splits {case.tile.splits}  {ms:.4f} ms {rate:6.1f} TFLOP/s  predicted {product_ms(product, case.tile, rows):.4f}"
        f"  library {library_ms:.4f} ({library_ms / ms:.2f}x)  error {ours / theirs:.2f}  registers {registers(folder, label)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="", help="only these, by name")
    todo = cases(set(parser.parse_args().shapes.split(",")) - {""})
    print(torch.cuda.get_device_name(), torch.__version__)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(15) as pool:
        folder = Path(name)
        sources = [source_of(product_kernel("k", case.product, Epilogue(), case.tile)) for case in todo]
        built = [pool.submit(build, folder, f"k{i}", source) for i, source in enumerate(sources)]
        for i, (case, library) in enumerate(zip(todo, built, strict=True)):
            print(measured(case, library.result(), folder, f"k{i}"), flush=True)


if __name__ == "__main__":
    main()
