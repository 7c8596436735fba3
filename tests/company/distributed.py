"""One of two processes that train together: run by `test_distributed.py`, which plans beforehand. Prints what it saw, as JSON."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from doors.watch import kernels_of, launches, warned
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fusewright


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.lin(torch.tanh(self.norm(x))), -1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(self.first(x)) * 2).sum(-1)


def optimised(module: nn.Module) -> Any:
    """From the cache: two processes that plan at once would only wait for one another. A block's input has a gradient."""
    x = torch.ones(4, 8, requires_grad=isinstance(module, Block))
    return fusewright.optimize(module, x, target="host", verify=False, strict=True)


def planned() -> bool:
    return all(optimised(module).report["cached"] for module in (Net(), Block()))


def steps(model: nn.Module, rank: int) -> list[float]:
    """Losses of a few steps, each rank with its own half of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for number in range(3):
        batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        loss = model(batch[4 * rank : 4 * rank + 4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        found.append(float(total) / 2)
    return found


def alone(model: nn.Module) -> list[float]:
    """The same on the whole batch, in one process."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for number in range(3):
        batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    return found


def main(rank: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    original = Net()
    said: dict[str, Any] = {"cached": planned(), "alone": alone(copy.deepcopy(original))}

    def tried(name: str, model: nn.Module, *optimised_ones: Any) -> None:
        with launches(*optimised_ones) as launched, warned() as words:
            losses = steps(model, rank)
        declared = set().union(*(kernels_of(one, gradients=True) for one in optimised_ones))
        said[name] = {"losses": losses, "launched": sorted(set(launched)), "declared": sorted(declared), "warned": words}

    new = optimised(copy.deepcopy(original))
    tried("ddp", DistributedDataParallel(new), new)
    new = optimised(copy.deepcopy(original))
    tried("fsdp of the whole", fully_shard(new), new)
    said["class"] = [type(new).__name__, isinstance(new, Net), type(next(new.parameters())).__name__]
    blocks = copy.deepcopy(original)
    blocks.first, blocks.second = optimised(blocks.first), optimised(blocks.second)
    for block in (blocks.first, blocks.second):
        fully_shard(block)
    tried("fsdp of blocks", fully_shard(blocks), blocks.first, blocks.second)
    new = optimised(copy.deepcopy(original))
    fully_shard(new.first)
    tried("fsdp inside", fully_shard(new), new)
    dist.destroy_process_group()
    print(json.dumps(said), flush=True)
    os._exit(0)  # gloo's threads may outlive what they use where Python ends in order: then C++ ends the process


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from company import distributed  # under the name that the plans were made for

    distributed.main(int(sys.argv[1]), sys.argv[2])
