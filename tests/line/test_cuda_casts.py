"""CUDA's autocast on the CPU: its casts are those that PyTorch itself makes for tensors on CUDA, which need no GPU where they are fake."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import fusewright
from fusewright.driver import pipeline
from fusewright.frontend.capture import capture
from fusewright.frontend.cuda_casts import IN_FLOAT32, LOW, WIDEST, casting, casts_for
from fusewright.frontend.problem import load_problem
from fusewright.options import Options

CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {  # of float32[6, 6] and bf16[6, 6]
    "linear": lambda a, b: F.linear(a, b),
    "mm": lambda a, b: torch.mm(a, a),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
    "conv1d": lambda a, b: F.conv1d(a.unsqueeze(0), b.unsqueeze(-1)),
    "attention": lambda a, b: F.scaled_dot_product_attention(*(x.view(1, 1, 6, 6) for x in (a, a, b))),
    "prelu": lambda a, b: F.prelu(a, torch.empty(1, device=a.device)),
    "softmax": lambda a, b: torch.softmax(b, -1),
    "softmax in its own": lambda a, b: torch.softmax(b, -1, torch.bfloat16),
    "softmax in float64": lambda a, b: torch.softmax(b, -1, dtype=torch.float64),
    "log_softmax": lambda a, b: F.log_softmax(b, 0),
    "sum": lambda a, b: (b.sum(), b.sum(1), b.sum(1, dtype=torch.bfloat16), torch.ones_like(b, dtype=torch.int64).sum()),
    "cumsum": lambda a, b: (torch.cumsum(b, 0), torch.cumprod(b, 0)),
    "norms": lambda a, b: (torch.linalg.vector_norm(b), torch.linalg.matrix_norm(b), b.norm(), b.norm(2, 1)),
    "layer_norm": lambda a, b: (F.layer_norm(b, [6]), F.group_norm(b, 2), F.rms_norm(b, [6])),
    "exp": lambda a, b: (b.exp(), b.log(), b.rsqrt(), b**2, b.pow(b), F.softplus(b)),
    "as they are": lambda a, b: (b.tanh(), F.gelu(b), b.relu(), a + b, b * 2, b.amax(1), b.mean(), torch.sigmoid(b)),
    "losses": lambda a, b: (F.mse_loss(b, b), F.l1_loss(b, a), F.smooth_l1_loss(b, b), F.kl_div(b, b, reduction="sum")),
    "with logits": lambda a, b: F.binary_cross_entropy_with_logits(b, b),
    "cross_entropy": lambda a, b: F.cross_entropy(b, b),
    "addcmul": lambda a, b: (torch.addcmul(a, b, b), torch.addcmul(b, b, b), torch.atan2(a, b), torch.dot(*b.unbind()[:2])),
    "upsample": lambda a, b: F.interpolate(b.unsqueeze(0), scale_factor=2),
    "cat": lambda a, b: (torch.cat([a, b]), torch.cat([b, b]), torch.stack([b, b])),
    "float64": lambda a, b: (torch.mm(a.double(), a.double()), a.double().exp()),
    "padded": lambda a, b: F.pad(a.unsqueeze(0), (1, 1), "reflect"),
}


def types(result: Any) -> list[torch.dtype]:
    return [tensor.dtype for tensor in pytree.tree_leaves(result)]


def on_fake_cuda(call: Callable[[Tensor, Tensor], Any]) -> list[torch.dtype]:
    """By PyTorch. `torch.autocast("cuda")` would be off where there is no GPU."""
    before = torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), torch.no_grad():
        a = torch.empty(6, 6, device="cuda")
        b = torch.empty(6, 6, device="cuda", dtype=torch.bfloat16)
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            return types(call(a, b))
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)


@pytest.mark.parametrize("name", CALLS)
def test_casts_are_those_of_cuda(name: str) -> None:
    if name == "attention" and torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("PyTorch asks the driver which attention it has")
    with casts_for("cuda") as seen, torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        found = types(CALLS[name](torch.ones(6, 6), torch.ones(6, 6, dtype=torch.bfloat16)))
    assert seen == ["cuda"] and found == on_fake_cuda(CALLS[name])


def test_every_operator_of_the_lists_casts() -> None:
    """And none is in two of them."""
    assert casting("AutocastCUDA") >= LOW | WIDEST | IN_FLOAT32
    assert len(LOW) + len(WIDEST) + len(IN_FLOAT32) == len(LOW | WIDEST | IN_FLOAT32)


def test_what_cuda_refuses_is_refused() -> None:
    with casts_for("cuda"), torch.autocast("cuda", torch.bfloat16), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(torch.rand(3), torch.rand(3))


class Scores(nn.Module):
    """Names the device of what it is given, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = self.lin(x)
            return torch.softmax(y, -1), y.relu()


@pytest.mark.parametrize(("device", "expected"), [("cuda", torch.float32), ("cpu", torch.bfloat16)])
def test_a_graph_has_the_casts_of_its_device(device: str, expected: torch.dtype) -> None:
    with casts_for(device) as seen:
        graph = capture(Scores(), [torch.randn(3, 8)])
    assert set(seen) == {"cpu"}
    assert [graph[output.value.name].dtype for output in graph.outputs] == [expected, torch.bfloat16]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.softmax(torch.ones(2, dtype=torch.bfloat16), 0).dtype is torch.bfloat16  # the CPU's own again


def test_a_file_planned_without_a_gpu_says_so(tmp_path: Path) -> None:
    """Its casts are those of the CPU."""
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
        "        with torch.autocast('cuda', torch.bfloat16):\n            return torch.softmax(x, -1).tanh()\n\n\n"
        "def get_inputs():\n    return [torch.randn(4, 8)]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, that there is no CUDA
        run = pipeline.optimize(load_problem(path), Options(target="host", verify=False))
    assert pipeline.OF_THE_CPU in run.report["notes"]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.rest = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            rows, steps, width = x.shape
            q, k, v = self.into(self.norm(x)).view(rows, steps, 3, 2, 8).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(rows, steps, width))
            return x + self.rest(x)


class Convolving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.batch = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            y = torch.relu(self.batch(self.last(F.gelu(self.norm(self.first(x))))))
            return torch.logsumexp(y, 1), y.amax((2, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "shape"), [(Attending, (2, 6, 16)), (Convolving, (2, 3, 9, 9))])
def test_plans_with_them_verify_on_the_host(model: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """The original casts as on CUDA too: forward, gradients and all else that verification asks."""
    with casts_for("cuda"):
        new = fusewright.optimize(model(), torch.randn(shape), target="host", strict=True, cache=False, seeds=1)
    assert new.report["verified"] is True and len(new.report["kernels"]) > 5


class Inside(nn.Module):
    """Operators composed of others, which alone are cast."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding="same")

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.einsum("bij,bjk->bik", x, x)
            return y, torch.einsum("bij,bjk->bik", x, y), F.cross_entropy(y.amax(1), labels), self.conv(x), F.layer_norm(x, [4])


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_is_cast_inside_an_operator(device: str) -> None:
    """It stays whole, and is given what it computes in: the types are eager's."""
    model, given = Inside(), [torch.randn(3, 4, 4), torch.zeros(3, dtype=torch.int64)]
    with casts_for(device):
        graph, expected = capture(model, given), types(model(*given))
    assert [graph[output.value.name].dtype for output in graph.outputs] == expected
    assert expected == [torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
    assert {"einsum.default", "cross_entropy_loss.default"} <= {str(node.target).removeprefix("aten.") for node in graph.nodes}
