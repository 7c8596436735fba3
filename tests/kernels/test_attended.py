"""Attention in whole models: where one kernel computes it, what stays in steps, and that both ways are right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from kernels.frame import a_part, models_of, problem_of

from fusewright.codegen.mma.attention import Attention, attention_ms
from fusewright.driver.front import Front
from fusewright.driver.pipeline import read_problem
from fusewright.driver.tuning.choices import Choices, own_of
from fusewright.host import HostLibrary
from fusewright.options import Options
from fusewright.schedule.attention_fusion import attentions
from fusewright.schedule.product_fusion import products
from fusewright.verify.candidate import load_candidate
from fusewright.verify.verifier import verify

QKV = ["q, k, v = x.view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4)"]
TOGETHER = ".transpose(1, 2).reshape(x.shape[0], x.shape[1], 16)"
BETWEEN = "torch.arange(50)[:, None] - torch.arange(50) + 49"
SHAPE = "torch.randn(3, 37, 48)"
CASES = {  # what is returned; inputs; lines before it; a statement of the constructor
    "softmax": (f"(torch.softmax(q @ k.mT * 0.3, -1) @ v){TOGETHER}", [SHAPE], QKV, "pass"),
    "left as heads": ("torch.softmax(q @ k.mT * 0.3, -1) @ v", [SHAPE], QKV, "pass"),
    "a mask that is a buffer": (
        f"(torch.softmax((q @ k.mT * 0.3).masked_fill(self.mask[: x.shape[1], : x.shape[1]] == 0, -torch.inf), -1) @ v){TOGETHER}",
        [SHAPE], QKV, 'self.register_buffer("mask", torch.ones(64, 64).tril())',
    ),
    "a mask that is an input": (
        f"(torch.softmax(q @ k.mT * 0.3 + y[:, None, None, :], -1) @ v){TOGETHER}", [SHAPE, "torch.randn(3, 37)"], QKV, "pass",
    ),
    "a bias by positions": (
        f"(torch.softmax(q @ k.mT + self.bias[self.where[: x.shape[1], : x.shape[1]]].permute(2, 0, 1), -1) @ v){TOGETHER}",
        [SHAPE], QKV, f"self.bias = nn.Parameter(torch.randn(99, 2)); self.register_buffer('where', {BETWEEN})",
    ),
    "relu": (f"(torch.relu(q @ k.mT * 0.1) @ v){TOGETHER}", [SHAPE], QKV, "pass"),
    "a sigmoid and a square": (f"(torch.sigmoid(q @ k.mT).square() @ v){TOGETHER}", [SHAPE], QKV, "pass"),
    "cross attention": (
        "torch.softmax(self.q(x) @ self.k(y).mT / 4, -1) @ self.v(y)", ["torch.randn(3, 33, 20)", "torch.randn(3, 41, 24)"], (),
        "self.q, self.k, self.v = nn.Linear(20, 16), nn.Linear(24, 16), nn.Linear(24, 12)",
    ),
    "of two dimensions": ("torch.softmax(x @ y.mT, -1) @ y", ["torch.randn(33, 16)", "torch.randn(41, 16)"], (), "pass"),
    "of a memory that is a parameter": (
        "torch.softmax(x @ self.keys.mT, -1) @ self.values", ["torch.randn(3, 33, 16)"], (),
        "self.keys, self.values = nn.Parameter(torch.randn(20, 16)), nn.Parameter(torch.randn(20, 24))",
    ),
    "by bmm": (
        "torch.bmm(torch.softmax(torch.bmm(x, y.transpose(1, 2)) * 2, 2), y)", ["torch.randn(3, 33, 16)", "torch.randn(3, 41, 16)"], (),
        "pass",
    ),
    "in one call": (f"F.scaled_dot_product_attention(q, k, v){TOGETHER}", [SHAPE], QKV, "pass"),
    "in one call, causal": (f"F.scaled_dot_product_attention(q, k, v, is_causal=True){TOGETHER}", [SHAPE], QKV, "pass"),
    "in one call, scaled": ("F.scaled_dot_product_attention(q, k, v, scale=0.2) * 2", [SHAPE], QKV, "pass"),
    "in one call, with a mask of numbers": (
        f"F.scaled_dot_product_attention(q, k, v, y){TOGETHER}", [SHAPE, "torch.randn(37, 37)"], QKV, "pass",
    ),
    "in one call, with a mask": (
        f"F.scaled_dot_product_attention(q, k, v, (y > -0.5)[:, None]){TOGETHER}", [SHAPE, "torch.randn(3, 37, 37)"], QKV, "pass",
    ),
    "in one call, of the inputs themselves": (
        "F.scaled_dot_product_attention(x, y, z, is_causal=True)", ["torch.randn(2, 3, 37, 16)", *["torch.randn(2, 3, 41, 16)"] * 2], (),
        "pass",
    ),
    "a layer": (
        "self.layer(x, x, x, need_weights=False)[0]", ["torch.randn(3, 37, 16)"], (),
        "self.layer = nn.MultiheadAttention(16, 2, batch_first=True)",
    ),
    "a layer in steps, batch first": (
        "self.layer(x, x, x)[0]", ["torch.randn(3, 37, 16)"], (), "self.layer = nn.MultiheadAttention(16, 2, batch_first=True)",
    ),
    "a layer in steps": (
        "self.layer(x, y, y)[0]", ["torch.randn(37, 3, 16)", "torch.randn(33, 3, 16)"], (), "self.layer = nn.MultiheadAttention(16, 2)",
    ),
}  # fmt: skip


def front_of(folder: Path, case: str) -> Front:
    forward, inputs, lines, init = CASES[case]
    return read_problem(problem_of(folder, forward, *inputs, lines=lines, init=init), Options(target="host"))


@pytest.mark.parametrize("case", a_part(CASES, 4))
def test_models(case: str, tmp_path: Path) -> None:
    """One kernel where no gradients are asked for, forward and gradients right."""
    front = front_of(tmp_path, case)
    made, emitted = front.finish(Choices(own=attentions(front.graph)))
    (name,) = [shortcut.kernel.name for shortcut in made.shortcuts]
    assert name == ("attention_fwd" if "softmax" in emitted.text or "scaled_dot" in emitted.text else "two_products_fwd")
    candidate = load_candidate(emitted.text, "host", name="new.py")
    verdict = verify(front.problem, candidate, graph=front.graph, options=Options(target="host"))
    assert verdict.passed, verdict.worst
    assert name in verdict.kernels and not any("bmm" in call or "attention" in call for call in verdict.library_calls)


@pytest.mark.parametrize("named", [("q", "k", "v"), ("k", "out", "q"), ("out", "q_z", "keys"), ("batch", "depth", "row")])
def test_inputs_called_as_operands_are(named: tuple[str, ...], tmp_path: Path) -> None:
    """The size `q_2` of an input q, by which a mask in memory is read, is no step of the queries."""
    lines = [f"at = torch.arange({named[0]}.shape[2])", "far = (at[None, :] - at[:, None]).abs() * -self.slopes[:, None, None]"]
    forward = f"(F.scaled_dot_product_attention({', '.join(named)}, far), far)"
    shapes = ["torch.randn(2, 3, 33, 16)"] * 3
    init = "self.slopes = nn.Parameter(torch.rand(3))"
    front = read_problem(problem_of(tmp_path, forward, *shapes, lines=lines, init=init, named=named), Options(target="host"))
    _, emitted = front.finish(Choices(own=attentions(front.graph)), gradients=False)
    original, new = models_of(front.problem, emitted.text)
    with torch.no_grad():
        given = front.problem.inputs()
        for got, expected in zip(new(*given), original(*given), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels, as they are launched."""
    names: list[str] = []
    call = HostLibrary.call

    def named(library: HostLibrary, kernel: str, *args: object) -> None:
        names.append(kernel)
        call(library, kernel, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HostLibrary, "call", named)
    return names


def launched_by(front: Front, choices: Choices, monkeypatch: pytest.MonkeyPatch) -> dict[bool, list[str]]:
    """The kernels that forward launches, by whether gradients are asked for; results are compared with the original's."""
    _, emitted = front.finish(choices)
    found, names = dict[bool, list[str]](), watched(monkeypatch)
    original, new = models_of(front.problem, emitted.text)
    for asked in (True, False):
        names.clear()
        inputs = [x.requires_grad_(asked and x.is_floating_point()) for x in front.problem.inputs()]
        with torch.set_grad_enabled(asked):
            torch.testing.assert_close(new(*inputs), original(*inputs), rtol=1e-5, atol=1e-5)
        found[asked] = list(names)
    return found


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("case", ["a layer in steps", "a layer in steps, batch first"])
def test_heads_of_a_layer_are_not_copied(case: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch and heads are one dimension of the layer's products, and do not lie as one in its projections."""
    front = front_of(tmp_path, case)
    own = attentions(front.graph) | (products(front.graph) if ours else frozenset())
    without = launched_by(front, Choices(own=own), monkeypatch)[False]
    assert "attention_fwd" in without and not any("copy" in name for name in without), without


def test_steps_where_gradients_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward is what it was without the kernel; who infers never has scores in memory."""
    front = front_of(tmp_path, "cross attention")
    found = launched_by(front, Choices(own=attentions(front.graph)), monkeypatch)
    assert found[False] == ["attention_fwd"] and "attention_fwd" not in found[True] and len(found[True]) == 1


def test_products_of_our_own_stay_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With or without a kernel for all of it, forward and backward of the steps are ours."""
    forward = "torch.softmax(self.q(x) @ self.k(x).mT / 4, -1) @ self.v(x)"
    init = "self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)"
    front = read_problem(problem_of(tmp_path, forward, "torch.randn(3, 40, 32)", init=init), Options(target="host"))
    found = launched_by(front, Choices(own=products(front.graph) | attentions(front.graph)), monkeypatch)
    assert len(found[True]) == 6 and len(found[False]) == 4 and "attention_fwd" in found[False]  # three projections before
    made, emitted = front.finish(Choices(own=products(front.graph) | attentions(front.graph)))
    assert own_of(made) == products(front.graph) | attentions(front.graph)
    candidate = load_candidate(emitted.text, "host", name="new.py")
    assert verify(front.problem, candidate, graph=front.graph, options=Options(target="host")).passed


def test_backward_has_the_same_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel beside the steps as without: where regions end on the way, nothing is copied for it."""
    monkeypatch.setattr("fusewright.schedule.product_fusion.pays", lambda anchor, plan: True)
    forward = f"self.out((torch.softmax(q @ k.mT * 0.3, -1) @ v){TOGETHER.replace('16', '32')})"
    lines = ["q, k, v = (y.view(y.shape[0], y.shape[1], 2, 16).transpose(1, 2) for y in self.qkv(x).split(32, 2))"]
    init = "self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)"
    front = read_problem(problem_of(tmp_path, forward, "torch.randn(3, 37, 32)", lines=lines, init=init), Options(target="host"))
    work = []
    for own in (products(front.graph), products(front.graph) | attentions(front.graph)):
        made, emitted = front.finish(Choices(own=own))
        functions = [part for part in emitted.text.split("\ndef ") if "_grad(" in part.split("\n", 1)[0]]
        work.append([sum(part.count(call) for part in functions) for call in ("_launch(", "torch.", "aten.")])
    assert len(made.shortcuts) == 1 and work[0][0] == work[1][0] and work[1][2] <= work[0][2], work


NOT_ALONE = {  # nothing may be left out of memory here, or comes between
    "weights are returned": "(lambda w: (w @ v, w))(torch.softmax(q @ k.mT, -1))",
    "weights are read twice": "(lambda w: w @ v + w @ (v * 2))(torch.softmax(q @ k.mT, -1))",
    "scores are returned": "(lambda s: (torch.softmax(s, -1) @ v, s.amax()))(q @ k.mT)",
    "over the queries": "torch.softmax(q @ k.mT, -2) @ v",
    "normalised otherwise": "(q @ k.mT).cumsum(-1) @ v",
    "scores are transposed": "torch.softmax((q @ k.mT).mT, -1) @ v",
    "dropped": "F.dropout(torch.softmax(q @ k.mT, -1), 0.5) @ v",
    "dropped in one call": "F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)",
    "log softmax": "torch.log_softmax(q @ k.mT, -1) @ v",
    "too deep": "torch.softmax(x @ x.mT, -1) @ x",
    "double precision": "torch.softmax(q.double() @ k.double().mT, -1) @ v.double()",
}


@pytest.mark.parametrize("case", NOT_ALONE, ids=lambda name: name.replace(" ", "-"))
def test_left_in_steps(case: str, tmp_path: Path) -> None:
    shape = "torch.randn(3, 37, 48 * 3)" if case == "too deep" else SHAPE
    lines = [QKV[0].replace("8)", "24)")] if case == "too deep" else QKV
    front = read_problem(problem_of(tmp_path, NOT_ALONE[case], shape, lines=lines), Options(target="host"))
    assert front.finish(Choices(own=attentions(front.graph)))[0].shortcuts == ()


LEFT_OUT = {  # a chain; whether keys may be left out by its mask
    "torch.softmax((q @ k.mT * 0.3).masked_fill(self.mask[: x.shape[1], : x.shape[1]], -torch.inf) * 2, -1) @ v": True,
    "torch.softmax(torch.where(self.mask[: x.shape[1], : x.shape[1]], q @ k.mT, -torch.inf), -1) @ v": True,
    "torch.softmax((q @ k.mT).masked_fill(self.mask[: x.shape[1], : x.shape[1]], -1e9), -1) @ v": False,
    "(lambda s: torch.softmax(torch.where(s > 0, s, -torch.inf), -1) @ v)(q @ k.mT)": False,
    "torch.softmax(torch.relu(q @ k.mT).masked_fill(self.mask[: x.shape[1], : x.shape[1]], -torch.inf), -1) @ v": False,
    "torch.softmax(q @ k.mT * 0.3, -1) @ v": False,
}


@pytest.mark.parametrize("forward", LEFT_OUT)
def test_masks_that_leave_keys_out(forward: str, tmp_path: Path) -> None:
    """Seen from the chain: scores go into arithmetic and into one side of a choice, never into what is chosen by."""
    init = "self.register_buffer('mask', torch.ones(64, 64).tril() > 0)"
    front = read_problem(problem_of(tmp_path, forward, SHAPE, lines=QKV, init=init), Options(target="host"))
    (shortcut,) = front.finish(Choices(own=attentions(front.graph)))[0].shortcuts
    assert shortcut.kernel.fused.attention.leaves_out is LEFT_OUT[forward]


def test_not_where_the_library_may_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusewright.schedule.attention_fusion.tf32_allowed", lambda: True)
    front = front_of(tmp_path, "softmax")
    assert front.finish(Choices(own=attentions(front.graph)))[0].shortcuts == ()


def test_layers_share_a_kernel(tmp_path: Path) -> None:
    """Of one shape, with other tensors; each is chosen by its own name."""
    lines = [*QKV, "q = torch.softmax(q @ k.mT * 0.3, -1) @ v"]
    front = read_problem(problem_of(tmp_path, "torch.softmax(q @ v.mT * 0.3, -1) @ k", SHAPE, lines=lines), Options(target="host"))
    names = own_of(front.finish(Choices(own=attentions(front.graph)))[0])
    made, emitted = front.finish(Choices(own=names))
    assert names == {"softmax", "softmax_1"} and own_of(made) == names
    assert emitted.text.count("_detail {") == 1 and emitted.text.count('_launch("attention_fwd",') == 2
    candidate = load_candidate(emitted.text, "host", name="new.py")
    assert verify(front.problem, candidate, graph=front.graph, options=Options(target="host")).passed
    one = sorted(names)[0]
    assert own_of(front.finish(Choices(own=frozenset({one})))[0]) == {one}
    assert own_of(front.finish(Choices(own=frozenset()))[0]) == frozenset()
    plain, text = front.finish(Choices(plain=True))
    assert plain.every_kernel == [] and "Model, unchanged" in text.text


def test_larger_depths_than_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the depth is an input's, a call may have a larger one: that takes the steps."""
    front = front_of(tmp_path, "by bmm")
    _, emitted = front.finish(Choices(own=attentions(front.graph)))
    names = watched(monkeypatch)
    original, new = models_of(front.problem, emitted.text)
    for depth, ours in ((16, True), (9, True), (17, False)):
        x, y = torch.randn(2, 20, depth), torch.randn(2, 30, depth)
        names.clear()
        torch.testing.assert_close(new(x, y), original(x, y), rtol=1e-5, atol=1e-5)
        assert ("attention_fwd" in names) == ours


@pytest.mark.parametrize(("length", "ours"), [(16, False), (1024, True)])
def test_taken_where_that_pays(length: int, ours: bool, tmp_path: Path) -> None:
    """By prediction: where there is much to multiply. PyTorch's is one call too."""
    inputs = f"torch.randn(16, {length}, 1536)"
    lines = [QKV[0].replace("3, 2, 8", "3, 8, 64")]
    front = read_problem(problem_of(tmp_path, "F.scaled_dot_product_attention(q, k, v)", inputs, lines=lines), Options(target="host"))
    assert bool(front.finish(Choices())[0].shortcuts) is ours


def test_the_count_of_the_kernel() -> None:
    """Heads of 96, 512 tokens, 128 of them: by count about 170 us, where steps took 540."""
    assert 0.13 < attention_ms(Attention(96, 96), 128, 512, 512) < 0.2
    assert attention_ms(Attention(96, 96, causal=True), 128, 512, 512) < 0.7 * attention_ms(Attention(96, 96), 128, 512, 512)
