"""Losses by kernels alone, with every reduction, against the original on the host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels import frame
from kernels.frame import made_of

CASES = {
    "probabilities": "F.cross_entropy(x, y)",
    "probabilities, smoothed": "F.cross_entropy(x, y, label_smoothing=0.1, reduction='sum')",
    "probabilities, weighed": "F.cross_entropy(x, y, weight=torch.linspace(0.5, 2.0, 7), reduction='none')",
    "probabilities, both": "F.cross_entropy(x, y, weight=torch.linspace(0.5, 2.0, 7), label_smoothing=0.2)",
}


@pytest.mark.parametrize("shape", [(5, 7), (3, 7, 4, 5)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_a_loss_of_probabilities(case: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    problem = frame.problem_of(tmp_path, CASES[case], f"torch.randn({shape})", f"torch.rand({shape}).softmax(1)")
    plan, _, original, new = made_of(problem)
    assert not [call for call in plan.calls if "linspace" not in str(call.node.target)]
    for scale in (1.0, 50.0):
        x, y = torch.randn(shape) * scale, torch.rand(shape).softmax(1)
        with torch.no_grad():
            torch.testing.assert_close(new(x, y), original(x, y), rtol=1e-5, atol=1e-5)


HALVES = {  # of x and y in rows of 7; x is a function of the weight, y is given
    "squares": "F.mse_loss(x, y)",
    "squares, added": "F.mse_loss(x, y, reduction='sum')",
    "squares, each": "F.mse_loss(x, y, reduction='none')",
    "distances": "F.l1_loss(x, y)",
    "smooth": "F.smooth_l1_loss(x, y, beta=0.5)",
    "huber": "F.huber_loss(x, y, delta=0.5)",
    "divergence": "F.kl_div(x.log_softmax(1), y.softmax(1), reduction='batchmean')",
    "cosine": "F.cosine_similarity(x, y)",
    "between rows": "F.pairwise_distance(x, y)",
    "entropy of two": "F.binary_cross_entropy_with_logits(x, y.sigmoid())",
    "entropy of two, of probabilities": "F.binary_cross_entropy(x.sigmoid(), y.sigmoid())",
    "classes": "F.cross_entropy(x, y.argmax(1), label_smoothing=0.1)",
    "classes, chosen": "F.nll_loss(x.log_softmax(1), y.argmax(1))",
    "probabilities": "F.cross_entropy(x, y.softmax(1))",
    "ranking": "F.margin_ranking_loss(x, y, y.sign())",
    "hinge": "F.hinge_embedding_loss(x, y.sign())",
    "triplet": "F.triplet_margin_loss(x, y, y.flip(0))",
    "product": "x.prod(1)",
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", HALVES, ids=lambda name: name.replace(" ", "-").replace(",", ""))
def test_a_loss_of_halves(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Summed in float32 and rounded once: results and gradients are as exact as eager's, by kernels alone forward and backward."""
    given = [f"torch.randn(8, 7).to({dtype})"] * 2
    weight = f"self.weight = nn.Parameter(torch.randn(7).to({dtype}))"
    problem = frame.problem_of(tmp_path, HALVES[case], *given, init=weight, lines=["x = x * self.weight"])
    plan, _, original, new = made_of(problem, gradients=True)
    assert not plan.calls
    x, y = (torch.randn(33, 7).to(dtype) for _ in range(2))
    exact = problem.model().double()
    exact.load_state_dict(original.state_dict())
    found = {}
    for name, model in (("exact", exact), ("eager", original), ("new", new)):
        result = model(*((x.double(), y.double()) if model is exact else (x, y)))
        result.double().sum().backward()
        found[name] = [result.detach().double(), model.weight.grad.double()]
        assert model is exact or result.dtype is dtype
    for wanted, eager, new_ in zip(found["exact"], found["eager"], found["new"], strict=True):
        error, eagers = ((value - wanted).abs().max() for value in (new_, eager))
        assert error <= 2 * eagers + torch.finfo(dtype).eps * wanted.abs().max(), (case, error, eagers)
