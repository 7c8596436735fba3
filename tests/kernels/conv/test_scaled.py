"""Convolutions whose float32 operands are scaled and rounded to fp16: as exact as with TF32, whatever the numbers' range."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from kernels.conv.chains import SOFTMAX
from kernels.conv.harness import launch, load
from kernels.conv.reference import explain, operands, operator
from kernels.conv.test_conv_host import check_sanitized, conv2d, run, transposed
from kernels.conv.test_warpgroup_wide import PHASED_TILES, TILES

from fusewright.codegen.mma.conv import (
    Conv,
    Epilogue,
    KernelText,
    OverChannels,
    OverPositions,
    Window,
    candidate_tiles,
    conv_kernel,
)
from fusewright.codegen.mma.conv_layout import layout, refusal
from fusewright.codegen.mma.conv_spec import MOST_ODD
from fusewright.codegen.mma.conv_tiles import fits, for_sizes

PRODUCED = {name: replace(tile, weights="staged", chunk=8) for name, tile in TILES.items() if tile.producers}
PRODUCED_PHASES = {name: replace(tile, weights="staged") for name, tile in PHASED_TILES.items() if tile.producers}
ROWS = Epilogue(reduce=OverChannels("LogSumExp"))


def scaled(conv: Conv) -> Conv:
    return replace(conv, scaled=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PRODUCED, ids=lambda name: name.replace(" ", "-"))
@pytest.mark.parametrize("epilogue", ["elements", "rows", "softmax", "pool"])
@pytest.mark.parametrize("width", [74, 75, 76])
def test_tiles(name: str, epilogue: str, width: int) -> None:
    """Two, one and four columns a load; channels that fill neither a word nor a chunk."""
    conv, tile = scaled(conv2d(21, 72 if "eight warps" in name else 32, 3, padding=1)), PRODUCED[name]
    asked = {
        "elements": Epilogue(), "rows": ROWS, "pool": Epilogue(window=Window("max", (1, 2))),
        "softmax": Epilogue(reduce=OverChannels("LogSumExp", keep=True), after=SOFTMAX),
    }[epilogue]  # fmt: skip
    out, (value, allowed) = run(conv, asked, 2, (10, width), tile)
    if epilogue == "rows":
        value, allowed = value.logsumexp(1, keepdim=True), allowed.amax(1, keepdim=True) + 4e-6
    elif epilogue == "softmax":
        value = value.softmax(1)
        allowed = value * (2 * allowed.amax(1, keepdim=True) + 4e-6)
    elif epilogue == "pool":
        value, allowed = (torch.nn.functional.max_pool2d(x, (1, 2)) for x in (value, allowed))
    assert explain(out, value, allowed) is None


@pytest.mark.parametrize("name", PRODUCED_PHASES, ids=lambda name: name.replace(" ", "-"))
def test_phases(name: str) -> None:
    conv = scaled(transposed(2, 21, 72 if "eight warps" in name else 32, 3, 2, 1, 1))
    out, found = run(conv, Epilogue(), 2, (5, 41), PRODUCED_PHASES[name])
    assert explain(out, *found) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "conv", [
        conv2d(36, 48, 3, padding=1, groups=2), conv2d(40, 130, (1, 5), dilation=(1, 2)), Conv(1, 24, 64, (3,), (1,), (1,), (1,)),
        Conv(3, 20, 40, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)), conv2d(48, 64, 3, transposed=True),
    ], ids=str,
)  # fmt: skip
def test_shapes(conv: Conv) -> None:
    conv = replace(conv, scaled=True)
    sizes = {1: (300,), 2: (9, 44), 3: (4, 7, 36)}[conv.dims]
    chosen = for_sizes(conv, Epilogue(), (2, *sizes))
    assert chosen.scaled
    for tile in candidate_tiles(chosen, Epilogue())[:2]:
        out, found = run(chosen, Epilogue(), 2, sizes, tile)
        assert explain(out, *found) is None


# ---- what fp16 does not hold

CONV, TILE, SIZES = scaled(conv2d(20, 40, 3, padding=1)), replace(PRODUCED["producers"], fragments=(1, 1, 4)), (3, 6, 72)


def kernel(most_odd: int | None = None) -> KernelText:
    text = conv_kernel("k", CONV, Epilogue(), TILE)
    return text if most_odd is None else replace(text, source=text.source.replace(f"MOST_ODD = {MOST_ODD}", f"MOST_ODD = {most_odd}"))


def computed(text: KernelText, library, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The result, and how many tiles were computed once more; -1 where all of some block's are."""
    out = torch.full((x.shape[0], CONV.out_channels, *x.shape[2:]), float("nan"))
    channels = eval(text.workspace["scales"])
    scales = torch.full((channels + text.per_sample["scales"] * x.shape[0],), float("nan"))
    launch(library, text, input=x, weight=w, bias=b, out=out, batch=x.shape[0], in_h=x.shape[2], in_w=x.shape[3], scales=scales)
    of_samples = scales[channels:].view(x.shape[0], -1)[:, :2].clone()
    some = bool((scales[:channels] == 0).any() or (of_samples[:, 0] == 0).any())
    return out, -1 if some else int(of_samples.view(torch.int32)[:, 1].sum())


def check_close(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Within what rounding to TF32 costs, element by element; beyond float32's range, and where something is not finite, as float32."""
    apply = operator(CONV)
    exact, size = apply(x.double(), w.double(), b.double()), apply(x.double().abs(), w.double().abs(), b.double().abs())
    ones = torch.ones_like(x, dtype=torch.float64)
    below = 2.0**-136 * (apply(ones, w.double().abs(), None) + apply(x.double().abs(), torch.ones_like(w, dtype=torch.float64), None))
    allowed = size * (2.0**-10 + 2.0**-19) + below.nan_to_num(nan=0.0, posinf=0.0) + 1e-37
    finite = size.isfinite() & (size < 2.0**126)
    assert explain(torch.where(finite, out, 0.0), torch.where(finite, exact, 0.0), torch.where(finite, allowed, 1.0)) is None
    assert bool(((out.isnan() == exact.isnan()) & (out.isinf() == exact.isinf()))[~size.isfinite()].all())


@pytest.fixture(scope="module")
def built():
    text = kernel()
    return text, load(text)


def test_ordinary_numbers_are_computed_once(built) -> None:
    x, w, b = operands(CONV, *SIZES[:1], SIZES[1:])
    for change in (x, x * 1e-12, x * 1e15, x.relu(), x.round(), torch.rand_like(x), torch.zeros_like(x), x - 100):
        out, odd = computed(*built, change, w, b)
        assert odd == 0
        check_close(change, w, b, out)


@pytest.mark.parametrize(("odd", "again"), [(1e-12, 3), (-3e-40, 3), (1e6, 18), (float("inf"), 3), (float("nan"), 0)], ids=str)
def test_one_number_that_does_not_fit(built, odd: float, again: int) -> None:
    """It is beside zero weights, too: then nothing else says what the result is. Tiles of three rows read it; where it is so large that
    others are too small beside it, all of its sample are computed once more. NaN is NaN in fp16."""
    x, w, b = operands(CONV, *SIZES[:1], SIZES[1:])
    x[1, 7, 3, 20] = odd
    w[5], b[:] = 0.0, 0.0
    w[5, 7] = 0.5
    out, tiles = computed(*built, x, w, b)
    assert tiles == again
    check_close(x, w, b, out)


@pytest.mark.parametrize("power", [-140.0, -80.0, 80.0, 110.0])
def test_samples_that_are_out_of_range(built, power: float) -> None:
    x, w, b = operands(CONV, *SIZES[:1], SIZES[1:])
    x[1] *= 2.0 ** (power / 2) * torch.tensor(2.0 ** (power / 2))
    out, tiles = computed(*built, x, w, b)
    assert tiles == -1
    check_close(x, w, b, out)


@pytest.mark.parametrize("kind", ["a tiny weight", "a huge channel", "a tiny channel", "an infinite weight"])
def test_weights_that_do_not_fit(built, kind: str) -> None:
    x, w, b = operands(CONV, *SIZES[:1], SIZES[1:])
    if kind == "a tiny weight":
        w[3, 4, 1, 1] = 1e-14
    elif kind == "an infinite weight":
        w[3, 4, 1, 1] = float("inf")
    else:
        w[3] *= 2.0**90 if "huge" in kind else 2.0**-90
    out, tiles = computed(*built, x, w, b)
    assert tiles == -1
    check_close(x, w, b, out)


@pytest.fixture(scope="module")
def short():
    """With a list of one tile for each sample."""
    text = kernel(most_odd=1)
    return replace(text, per_sample={"scales": 4}), load(text)


def test_a_sample_does_not_depend_on_others(built, short) -> None:
    """Nor where more of its tiles do not fit than are listed: then all of them are computed once more, and none of another's."""
    x, w, b = operands(CONV, *SIZES[:1], SIZES[1:])
    x[0] *= 1e-3
    x[2, 3, 2, ::16] = 1e-13
    for text, library in (built, short):
        together, tiles = computed(text, library, x, w, b)
        again, _ = computed(text, library, x, w, b)
        assert torch.equal(together, again) and tiles > 3
        check_close(x, w, b, together)
        for n in range(3):
            assert torch.equal(computed(text, library, x[n : n + 1].clone(), w, b)[0][0], together[n])


def test_each_tile_is_listed_once() -> None:
    """A tile is one step, and warps that fill stages are some tiles apart: each of them finds that it does not fit."""
    conv = replace(CONV, in_channels=12)
    text = conv_kernel("k", conv, Epilogue(), replace(TILE, stages=4))
    library = load(text)
    batch, height = 64, 8  # many samples: a block has several tiles of one
    x, w, b = operands(conv, batch, (height, 72))
    x[:, :, :, ::5] = 1e-12
    channels, found = eval(text.workspace["scales"]), set()
    for seed in range(2):
        if hasattr(library, "set_order"):
            library.set_order(seed=seed)
        scales = torch.full((channels + text.per_sample["scales"] * batch,), float("nan"))
        out = torch.full((batch, 40, height, 72), float("nan"))
        launch(library, text, input=x, weight=w, bias=b, out=out, batch=batch, in_h=height, in_w=72, scales=scales)
        for count, *listed in scales[channels:].view(batch, -1)[:, 1:].view(torch.int32).tolist():
            found.add((count, len({*zip(listed[: 2 * count : 2], listed[1 : 2 * count : 2], strict=True)})))
    (only,) = found
    assert 8 < only[0] == only[1] < MOST_ODD


@pytest.mark.parametrize("reversed_", [False, True])
def test_the_order_of_the_list_does_not_matter(reversed_: bool) -> None:
    """Whose sums overflow a plain exponential is remembered from tile to tile, and tiles of the list come in any order."""
    tile = PRODUCED["producers"]
    text = conv_kernel("k", CONV, ROWS, tile)
    source = re.sub(r"(least_waste\(tiles, batch \* 1, )\d+,", r"\g<1>1,", text.source)  # one block has all tiles
    assert source != text.source and "atomicMax(odd_tile" in source and "of_sample.odd_tile[at]" in source
    if reversed_:
        source = source.replace("of_sample.odd_tile[at]", "of_sample.odd_tile[odd_tiles - 1 - at]")
    text = replace(text, source=source)
    x, w, b = operands(CONV, 1, (64, 36))
    x *= 300
    x[0, 3, 20, 5] = x[0, 3, 40, 5] = 1e-12
    channels, out = eval(text.workspace["scales"]), torch.full((1, 1, 64, 36), float("nan"))
    scales = torch.full((channels + text.per_sample["scales"],), float("nan"))
    launch(load(text), text, input=x, weight=w, bias=b, out=out, batch=1, in_h=64, in_w=36, scales=scales)
    exact, size = (operator(CONV)(*(f(given.double()) for given in (x, w, b))) for f in (torch.clone, torch.abs))
    assert int(scales[channels:].view(torch.int32)[1]) > 3
    assert explain(out, exact.logsumexp(1, keepdim=True), size.amax(1, keepdim=True) * 2.0**-9) is None


def drawn(make: torch.Generator, kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w, b = operands(CONV, 1, (4, 36), seed=int(torch.randint(1 << 30, (), generator=make)))

    def powers(shape: tuple[int, ...], most: float) -> torch.Tensor:
        return torch.exp2((torch.rand(shape, generator=make) * 2 - 1) * most).float()

    def some(x: torch.Tensor) -> torch.Tensor:
        return torch.rand(x.shape, generator=make) < 0.002

    if kind == "rows":
        x, w = x * powers((1, 1, 4, 1), 60), w * powers((40, 1, 1, 1), 30)
    elif kind == "channels":
        x = x * powers((1, 20, 1, 1), 60)
    elif kind == "weights":
        w = w * powers(tuple(w.shape), 40)
    elif kind == "everywhere":
        x = x * powers(tuple(x.shape), 60)
    elif kind == "one huge":
        x[0, 3, 1, 7], w[:20, 3] = 2.0 ** float(torch.rand((), generator=make) * 120), 0.0
    elif kind == "denormals":
        x, w = torch.where(torch.rand(x.shape, generator=make) < 0.1, x * 2.0**-120 * 2.0**-12, x), w
    elif kind == "all tiny":
        x = x * 2.0**-100 * float(powers((), 40))
    elif kind == "all huge":
        x, w = x * 2.0**90 * float(powers((), 20)), w * 2.0**-20
    elif kind == "zeros":
        x = x * (torch.rand(x.shape, generator=make) < 0.05) * powers(tuple(x.shape), 10)
    else:
        x = torch.where(some(x), float(kind), x)
        w = torch.where(some(w) & (torch.rand((), generator=make) < 0.5), float(kind), w)
    return x, w, b


@pytest.mark.parametrize(
    "kind", ["rows", "channels", "weights", "everywhere", "one huge", "denormals", "all tiny", "all huge", "zeros", "inf", "nan"]
)
def test_adversarial_ranges(built, kind: str) -> None:
    make = torch.Generator().manual_seed(len(kind))
    for _ in range(46):
        x, w, b = drawn(make, kind)
        out, _ = computed(*built, x, w, b)
        check_close(x, w, b, out)


# ---- where it can be


def test_who_can_be_scaled() -> None:
    conv = scaled(conv2d(64, 128, 3, padding=1))
    moments = Epilogue(reduce=OverPositions("CloseMoments"))
    assert for_sizes(conv, Epilogue(), (8, 64, 64)).scaled
    assert fits(conv, moments) and not for_sizes(conv, moments, (8, 64, 64)).scaled
    strided = scaled(conv2d(64, 128, 3, stride=2, padding=1))
    assert fits(strided, Epilogue()) and not for_sizes(strided, Epilogue(), (8, 64, 64)).scaled
    assert "packs" in str(refusal(layout(conv, Epilogue(), replace(TILE, weights="resident")), Epilogue()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
@pytest.mark.parametrize("phases", [False, True])
def test_sanitized(sanitize: str, phases: bool) -> None:
    conv = scaled(transposed(2, 11, 20, 3, 2, 1, 1) if phases else conv2d(11, 20, 3, padding=1, in_runs=True, saves=True))
    text = conv_kernel("k", conv, Epilogue(), (PRODUCED_PHASES if phases else PRODUCED)["producers"])
    size = 20 * 18 * 26
    floats = {"input": 2 * 11 * 9 * 13, "weight": 20 * 11 * 9, "bias": 20, "out": 2 * size, "saved": 2 * size}
    floats |= {buffer: eval(count) + 2 * text.per_sample.get(buffer, 0) for buffer, count in text.workspace.items()}
    check_sanitized(text, floats, {"batch": 2, "in_h": 9, "in_w": 13}, sanitize)
