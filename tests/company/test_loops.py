"""The usual loops of Lightning and Accelerate, where these are installed, train an optimised module as they train any other."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from company.distributed import Net
from doors.watch import kernels_of, launches, warned
from torch import Tensor
from torch.utils.data import DataLoader

import fusewright

optimised = functools.partial(fusewright.optimize, inputs=torch.ones(4, 8), target="host", verify=False, strict=True)


def loader() -> DataLoader[Tensor]:
    data: Any = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(data, batch_size=4)


def expected(original: Net) -> Net:
    twin = copy.deepcopy(original)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
    for x in loader():
        optimizer.zero_grad()
        twin(x).square().mean().backward()
        optimizer.step()
    return twin


def same(new: Any, original: Any) -> None:
    for found, wanted in zip(new.parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    original = Net()
    wanted, new = expected(original), optimised(original)
    model, optimizer, data = accelerator.prepare(new, torch.optim.SGD(new.parameters(), lr=0.3), loader())
    with launches(new) as launched, warned() as said:
        for x in data:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(model(x).square().mean())
                optimizer.step()
    assert set(launched) == kernels_of(new, gradients=True) and not said
    same(accelerator.unwrap_model(model), wanted)


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self, net: Any) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Tensor, number: int) -> Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.3)

    original = Net()
    wanted, new = expected(original), optimised(original)
    quietly = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=1, default_root_dir=tmp_path, **quietly)
    with launches(new) as launched, warned() as said:
        trainer.fit(Task(new), loader())
    assert set(launched) == kernels_of(new, gradients=True) and not said
    same(new, wanted)
