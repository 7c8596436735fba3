"""On a GPU: threads, streams, several GPUs and forks. What each call gives is what it gives alone, bit by bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from company.test_forks import in_a_fork
from company.work import at_once, forward, inputs, same, step
from torch import Tensor

import fusewright

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
STREAMS, CALLS = 4, 12


@pytest.fixture(scope="module")
def on_gpu(file: Path) -> ModuleType:
    return fusewright.load(file, "cuda")


@pytest.mark.parametrize("call", [forward, step])
def test_threads_share_a_module(call: Callable[..., Any], on_gpu: ModuleType) -> None:
    model, given = on_gpu.ModelNew(16).cuda(), inputs(STREAMS * CALLS, "cuda")
    alone = [call(model, x) for x in given]

    def calls(first: int) -> list[Any]:
        found = [call(model, x) for x in given[first::STREAMS]]
        torch.cuda.synchronize()
        return found

    found = at_once([functools.partial(calls, first) for first in range(STREAMS)])
    for first in range(STREAMS):
        assert all(map(same, found[first], alone[first::STREAMS]))


@pytest.mark.parametrize("call", [forward, step])
def test_threads_that_build_and_call_first(call: Callable[..., Any], file: Path, tmp_path: Path) -> None:
    """Kernels of forward and of backward are built in whichever thread comes first; the others wait."""
    text = file.read_text().replace("#include <cuda_runtime.h>", f"// {tmp_path.name}\n#include <cuda_runtime.h>")  # never built before
    (tmp_path / "fresh_new.py").write_text(text)
    module, (x,) = fusewright.load(tmp_path / "fresh_new.py", "cuda"), inputs(1, "cuda")

    def first() -> tuple[torch.nn.Module, list[Tensor]]:
        model = module.ModelNew(16).cuda()
        return model, call(model, x)

    found = at_once([first] * 3)
    assert all(same(result, call(model, x)) for model, result in found)


@pytest.mark.parametrize("call", [forward, step])
def test_streams_share_a_module(call: Callable[..., Any], on_gpu: ModuleType) -> None:
    """Scratch memory is the stream's: it is given back while kernels of other streams run."""
    model, given = on_gpu.ModelNew(16).cuda(), inputs(STREAMS * CALLS, "cuda")
    alone = [call(model, x) for x in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    found: list[list[Tensor]] = []
    for i, x in enumerate(given):
        with torch.cuda.stream(streams[i % STREAMS]):
            found.append(call(model, x))
    torch.cuda.synchronize()
    assert all(map(same, found, alone))


def test_every_gpu(on_gpu: ModuleType) -> None:
    """Also where another GPU is the current one, and in threads, whose current GPU is the first."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    models = [on_gpu.ModelNew(16).to(f"cuda:{i}") for i in range(torch.cuda.device_count())]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    given = inputs(6)
    alone = [step(models[0], x.to("cuda:0")) for x in given]

    def calls(place: int) -> list[list[Tensor]]:
        found = [step(models[place], x.to(f"cuda:{place}")) for x in given]
        return [[t.to("cuda:0") for t in one] for one in found]

    for found in [*map(calls, range(len(models))), *at_once([functools.partial(calls, i) for i in range(len(models))])]:
        assert all(map(same, found, alone))


def test_a_child_has_no_gpu(on_gpu: ModuleType, new: ModuleType) -> None:
    """After CUDA has started a fork can use neither it nor autograd: a model is made there all the same, and runs forward on the CPU."""
    x = inputs(1)[0]
    on_gpu.ModelNew(16).cuda()(x.cuda())
    on_host = new.ModelNew(16)
    expected = on_host(x)

    def work() -> bool:
        torch.set_num_threads(1)
        on_gpu._built.cache_clear()
        plain = on_gpu.ModelNew(16)
        plain.load_state_dict(on_host.state_dict())
        with torch.no_grad():
            return same([on_host(x)], [expected]) and plain(x).shape == expected.shape

    assert in_a_fork(work)
