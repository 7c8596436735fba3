"""What a tensor-core kernel says that it calls is what the words of its text say: pieces are told by hand, and texts grow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from kernels.conv.chains import WITH_PLACE
from kernels.conv.founding import CONV1, CONV2, apply_epilogue
from kernels.words import called

from fusewright.codegen.mma import weight_gradient
from fusewright.codegen.mma.attention import Attention, attention_kernel
from fusewright.codegen.mma.code import HERE, Code, calling, pieces_of
from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    OverChannels,
    OverPositions,
    Window,
    candidate_tiles,
    conv_kernel,
)
from fusewright.codegen.mma.conv_spec import KernelText, Tile
from fusewright.codegen.mma.depthwise import depthwise_kernel, fits
from fusewright.codegen.mma.product import Product, ProductTile, product_kernel, support
from fusewright.ir import functions as fn
from fusewright.ir.expr import Name
from fusewright.target.helpers import BASE, named

WHOLE = ("product", "weight_gradient")  # headers of these are no pieces
HEADERS = [file.name for file in sorted(HERE.glob("*.cuh")) if not file.name.startswith(WHOLE)]
CONVS = {
    "plain": CONV1,
    "three dimensions": CONV2,
    "strict": replace(CONV1, tf32=False),
    "bf16": replace(CONV1, dtype="bfloat16"),
    "fp16": replace(CONV1, dtype="float16", in_channels=7, bias=False),
    "for backward": replace(CONV1, saves=True),
    "fp16 for backward": replace(CONV1, saves=True, dtype="float16"),
    "odd rows": replace(CONV1, in_runs=True),
    "few inputs": replace(CONV1, in_channels=3),
    "few inputs, strict": replace(CONV1, in_channels=3, tf32=False),
    "transposed": Conv(2, 16, 64, (4, 4), (2, 2), (1, 1), (1, 1), transposed=True),
    "transposed, strict": Conv(2, 16, 64, (4, 4), (2, 2), (1, 1), (1, 1), transposed=True, tf32=False),
    "transposed, bf16": Conv(2, 16, 64, (4, 4), (2, 2), (1, 1), (1, 1), transposed=True, dtype="bfloat16"),
    "open": Conv(2, 256, 128, (1, 1), (1, 1), (0, 0), (1, 1), open_inputs=True),
    "groups": Conv(2, 32, 80, (3, 3), (2, 1), (1, 1), (1, 1), groups=2),
    "depthwise": Conv(2, 32, 32, (3, 3), (1, 1), (1, 1), (1, 1), groups=32),
    "depthwise, bf16": Conv(2, 32, 32, (3, 3), (1, 1), (1, 1), (1, 1), groups=32, dtype="bfloat16"),
}
EPILOGUES = {
    "elements": Epilogue(),
    "chain": Epilogue(before=WITH_PLACE),
    "max": Epilogue(window=Window("max", (2, 2))),
    "mean": Epilogue(window=Window("avg", (1, 3))),
    "logsumexp": Epilogue(reduce=OverChannels("LogSumExp")),
    "bounded": Epilogue(reduce=OverChannels("LogSumExp", bounded=True)),
    "pooled logsumexp": Epilogue(window=Window("max", (2, 2)), reduce=OverChannels("LogSumExp", plus=1.5)),
    "largest": Epilogue(reduce=OverChannels("Max")),
    "sum": Epilogue(reduce=OverChannels("Sum")),
    "softmax": Epilogue(reduce=OverChannels("LogSumExp", keep=True)),
    "moments": Epilogue(reduce=OverPositions("CloseMoments")),
    "sums": Epilogue(reduce=OverPositions("Sum")),
    "moments beside elements": Epilogue(stored=True, reduce=OverPositions("CloseMoments")),
    "founding": apply_epilogue(),
}


def check(text: KernelText) -> None:
    supported = {part.name for part in text.support}
    assert named(text.calls) - set(BASE) == called(text.source) - set(BASE) - supported, text.source


@pytest.mark.parametrize("file", HEADERS)
def test_pieces_of_headers(file: str) -> None:
    pieces = pieces_of(file)
    assert pieces and {name: named(piece.calls) for name, piece in pieces.items()} == {
        name: called(piece.text) for name, piece in pieces.items()
    }


def test_what_products_and_gradients_of_weights_share() -> None:
    for helper, name in ((support(), "product"), (weight_gradient.support(), "weight_gradient")):
        assert set(helper.requires) == called(helper.text) and helper.defines == (name,)


def widened(epilogue: Epilogue, dims: int) -> Epilogue:
    """With a pool of so many dimensions."""
    window = epilogue.window
    return epilogue if window is None or dims == 2 else replace(epilogue, window=replace(window, size=(1, *window.size)))


def distinct(conv: Conv, epilogue: Epilogue) -> Iterator[Tile]:
    """Of the tiles that could be chosen one of each kind."""
    seen = set()
    for tile in candidate_tiles(conv, epilogue):
        kind = (tile.weights, tile.folded, tile.warpgroups, tile.warps_c > 1, tile.alone, tile.producers)
        if kind not in seen:
            seen.add(kind)
            yield tile


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str) -> None:
    conv, made = CONVS[name], 0
    for epilogue in (widened(epilogue, conv.dims) for epilogue in EPILOGUES.values()):
        if conv.groups == conv.in_channels:
            texts = [depthwise_kernel("k", conv, epilogue)] if fits(conv, epilogue) else []
        else:
            texts = [conv_kernel("k", conv, epilogue, tile) for tile in distinct(conv, epilogue)]
        for text in texts:
            check(text)
        made += len(texts)
    assert made >= 5


def test_products_and_attention() -> None:
    chain = replace(WITH_PLACE, result=fn.erf(Name("value")))
    products, tiles = (Product(64, 96), Product(600, 64, bias=True, saves=True)), (ProductTile(), ProductTile(2, 8, 4))
    for product, tile in itertools.product(products, tiles):
        check(product_kernel("k", product, Epilogue(), tile))
        check(product_kernel("k", product, Epilogue(before=chain), tile))
    for softmax, leaves_out, width in itertools.product((True, False), (True, False), (33, 64)):
        check(attention_kernel("k", Attention(64, width, softmax=softmax, leaves_out=leaves_out and softmax)))


def test_a_piece_calls_what_its_places_do() -> None:
    filled = calling("a($b);", "a").filled(b=calling("to_tf32(x)", "to_tf32"), c=calling("meet(x)", "meet"))
    assert filled == Code("a(to_tf32(x));", frozenset({"a", "to_tf32"}))
    assert ("x" + calling("y", "y") + "z").moved(2) == Code("  xyz", frozenset({"y"}))
