"""What a candidate is verified on: values, layouts, sizes, parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusewright.frontend.capture import capture
from fusewright.frontend.problem import load_problem
from fusewright.verify.shrink import Shapes, Space, choose, seconds_for, space_of, work
from fusewright.verify.variants import (
    DISTRIBUTIONS,
    LAYOUTS,
    NOT_FINITE,
    Source,
    Variant,
    fewer,
    named_state,
    planned,
    random_state,
)

CPU = torch.device("cpu")
MODEL = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x, k):
        return torch.relu(self.conv(x)).amax(1) + k.to(x.dtype).mean()

def get_inputs():
    return [torch.rand(8, 3, 32, 20), torch.randint(0, 5, (8,))]

def get_init_inputs():
    return []
"""


@pytest.fixture
def source(tmp_path: Path) -> Source:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return Source(load_problem(path))


def variant(**changes: object) -> Variant:
    return Variant(**{"group": "test", "sizes": ((2, 3, 8, 9), (2,)), **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, *NOT_FINITE])
def test_distributions(source: Source, name: str) -> None:
    x, k = source.inputs(variant(distribution=name), CPU)
    again, _ = source.inputs(variant(distribution=name), CPU)
    assert x.shape == (2, 3, 8, 9)
    assert k.dtype == torch.int64
    assert 0 <= int(k.min()) <= int(k.max()) < 5  # integers keep their own distribution
    assert torch.equal(torch.nan_to_num(x), torch.nan_to_num(again))
    assert x.data_ptr() != again.data_ptr()
    if name in NOT_FINITE:
        assert int((~torch.isfinite(x)).sum()) == 1
    if name == "large mean":
        assert 990 < float(x.mean()) < 1010
    if name == "far below zero":
        assert float(x.max()) < -900
    if name == "ties and zeros":
        assert torch.equal(x[0], torch.zeros_like(x[0])) and len(x.unique()) < 20


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_hold_the_same_values(source: Source, name: str) -> None:
    plain, _ = source.inputs(variant(distribution="normal"), CPU)
    x, _ = source.inputs(variant(distribution="normal", layout=name), CPU)
    if name == "one sample expanded":
        assert x.stride(0) == 0
        assert torch.equal(x[0], plain[0])
        return
    assert torch.equal(x, plain)
    if name == "misaligned by one element":
        assert x.storage_offset() == 1
    elif name == "channels last":
        assert x.is_contiguous(memory_format=torch.channels_last)
    elif name not in ("as given", "contiguous"):
        assert not x.is_contiguous()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_values_lie_as_given(name: str, tmp_path: Path) -> None:
    """In a file whose inputs are channels-last: a model that draws random numbers draws them in that order."""
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace("torch.rand(8, 3, 32, 20)", "torch.rand(8, 3, 32, 20).to(memory_format=torch.channels_last)"))
    source = Source(load_problem(path))
    x, _ = source.inputs(variant(distribution=name, sizes=((9, 3, 8, 40), (9,))), CPU)
    assert x.is_contiguous(memory_format=torch.channels_last)
    x, _ = source.inputs(variant(distribution=name, layout="contiguous"), CPU)
    assert x.is_contiguous()
    layouts = [{v.layout for v in planned(Shapes(source.sizes, source.sizes, source.sizes, {}), 2, straight)} for straight in (True, False)]
    assert layouts[1] - layouts[0] == {"contiguous"}


def test_sizes_can_grow(source: Source) -> None:
    x, k = source.inputs(variant(sizes=((9, 3, 40, 21), (9,))), CPU)
    assert x.shape == (9, 3, 40, 21)
    assert k.shape == (9,)
    assert not torch.equal(x[8], x[0])


def test_seeds_differ(source: Source) -> None:
    first, second = (source.inputs(variant(seed=seed), CPU)[0] for seed in (0, 1))
    assert not torch.equal(first, second)


def test_parameters_leave_their_defaults() -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64))
    before = {name: t.detach().clone() for name, t in named_state(model)}
    trained = {name for name, _ in model.named_parameters()}
    after = random_state(before, trained, "random", 0)
    assert after.keys() == before.keys()
    assert after["1.weight"].std() > 0.2
    assert after["1.weight"].min() < 0.6 < 1.4 < after["1.weight"].max()
    assert after["1.bias"].std() > 0.2
    assert after["1.running_var"].min() > 0
    assert after["1.running_var"].std() > 0.1
    assert torch.equal(after["1.num_batches_tracked"], before["1.num_batches_tracked"])
    assert random_state(before, trained, "large shift", 0)["0.bias"].mean() > 200


def shapes_of(source: Source, space: Space) -> Shapes:
    model, inputs = source.problem.model(), source.given

    def seconds(sizes: object) -> float | None:
        found = work(model, inputs, sizes)  # type: ignore[arg-type]
        return None if found is None else seconds_for(*found)

    return choose(space, seconds)


@pytest.mark.parametrize("captured", [True, False])
def test_sizes_to_verify_at(source: Source, captured: bool) -> None:
    """The batch of both inputs moves together, with a graph that says so and without one."""
    model, inputs = source.problem.model(), source.given
    shapes = shapes_of(source, space_of(capture(model, inputs) if captured else None, model, inputs))
    assert shapes.given == ((8, 3, 32, 20), (8,))
    assert all(x is not None and k is not None and x[0] == k[0] for x, k in [shapes.small, *shapes.others.values()])
    assert all(x is not None and x[1] == 3 for x, _ in shapes.others.values())
    batches = {x[0] for x, _ in [shapes.small, *shapes.others.values()] if x is not None}
    assert {2, 3, 4} <= batches
    odd = shapes.others["odd sizes"][0]
    assert odd is not None and odd[2] % 2 == odd[3] % 2 == 1 and odd[2] != odd[3]
    least = shapes.others["least sizes"][0]
    assert least is not None and min(least[2:]) <= 4


def test_a_large_model_is_shrunk_and_says_so(examples: Path) -> None:
    problem = load_problem(examples / "conv3d_maxpool_logsumexp.py")
    model = problem.model()
    inputs: list[Tensor] = [torch.empty(1).expand(4, 32, 32, 128, 128)]
    source = Source(problem, {0: inputs})
    shapes = shapes_of(source, space_of(None, model, inputs))
    assert shapes.note.startswith("verified at batch 2, ")
    assert shapes.note.endswith("instead of batch 4, 32x128x128")
    main = shapes.main[0]
    assert main is not None and main[0] == 2 and main[1] == 32 and max(main) <= 64


def test_fewer_variants_keep_one_of_each_group() -> None:
    shapes = Shapes(((8, 4),), ((8, 4),), ((3, 4),), {"batch + 1": ((4, 4),)})
    variants = planned(shapes, seeds=2)
    assert fewer(variants, 0.01, 20) == variants
    few = fewer(variants, 10.0, 20)
    assert {v.group for v in few} == {v.group for v in variants}
    assert len(few) < len(variants) / 2


def test_one_seed_repeats_nothing_at_the_given_sizes() -> None:
    shapes = Shapes(((8, 4),), ((8, 4),), ((3, 4),), {"batch + 1": ((4, 4),)})
    once, usual = planned(shapes, seeds=1), planned(shapes, seeds=2)
    assert sum(v.sizes == shapes.main for v in once) == 1 and sum(v.sizes == shapes.main for v in usual) == 5
    assert {v.group for v in once} == {v.group for v in usual} and set(once) < set(usual)


def test_variants_name_themselves() -> None:
    text = str(variant(distribution="×3", layout="channels last", parameters="random", training=False, seed=4))
    for words in ("seed 4", "×3 values", "2×3×8×9", "channels last", "random parameters", "evaluation mode"):
        assert words in text
