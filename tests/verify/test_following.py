"""Candidates that are right for the one call that everyone makes, and do not follow their model when something else changes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fusewright.driver.pipeline import optimize
from fusewright.frontend.problem import load_problem
from fusewright.options import Options
from fusewright.schedule.training import KERNELS
from fusewright.verify.candidate import load_candidate
from fusewright.verify.checks import Trial, values
from fusewright.verify.shrink import Shapes
from fusewright.verify.subjects import subjects
from fusewright.verify.verifier import Check, Verdict, verify

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
COPY = "class ModelNew(Model):\n    ...\n"

NORM = """
class Model(nn.Module):
    def __init__(self, channels, groups=4, slope=0.1, affine=True, kind="none"):
        super().__init__()
        self.conv = nn.Conv1d(channels, 16, 1)
        self.norm = nn.GroupNorm(groups, 16, affine=affine)
        self.act = nn.GELU(approximate=kind)
        self.drop = nn.Dropout(0.25)
        self.slope, self.widths = slope, [1.0, 2.0]

    def forward(self, x):
        x = self.norm(self.conv(x))
        return self.drop(F.leaky_relu(self.act(x), self.slope)) * self.widths[1]


def get_inputs():
    return [torch.randn(4, 6, 10)]


def get_init_inputs():
    return [6]
"""

STATE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(12, 8)
        self.hidden, self.calls, self.seen = None, 0, []

    def forward(self, x):
        if self.hidden is None or self.hidden.shape[0] != x.shape[0]:
            self.hidden = x.new_zeros(x.shape[0], 8)
        self.hidden = torch.tanh(self.cell(torch.cat([x, self.hidden], 1))).detach()
        self.calls += 1
        self.seen.append(len(x))
        y = self.cell(torch.cat([x, self.hidden], 1))
        self.aux_loss = y.square().mean()
        return y * (1.0 if self.calls < 2 else 0.5)


def get_inputs():
    return [torch.randn(4, 4)]


def get_init_inputs():
    return []
"""

AUX = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        y = self.linear(x)
        self.aux_loss = y.square().mean()
        return y


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return []
"""

DETACHED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        y = self.linear(x)
        return y, y.detach() * 2


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return []
"""


def judged(folder: Path, model: str, new: str, options: Options | None = None) -> Verdict:
    (folder / "model.py").write_text(HEAD + model.lstrip())
    problem = load_problem(folder / "model.py")
    return verify(problem, load_candidate(problem.source + "\n\n" + textwrap.dedent(new), "host"), options=options)


def failed(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.detail for check in verdict.checks if check.status == "failed"}


def named(verdict: Verdict, name: str) -> Check:
    (check,) = [check for check in verdict.checks if check.name == name]
    return check


# Each is right as built, with the sizes, values, layouts, types and gradients that all other checks try.
CHEATS = {
    "a number of the constructor": (
        NORM,
        """
        class ModelNew(Model):
            def __init__(self, channels, groups=4, slope=0.1, affine=True, kind="none"):
                super().__init__(channels, 4, slope, affine, kind)
        """,
        "other constructor arguments",
        "with groups = ",
    ),
    "a flag of the constructor": (
        NORM,
        """
        class ModelNew(Model):
            def __init__(self, channels, groups=4, slope=0.1, affine=True, kind="none"):
                super().__init__(channels, groups, slope, True, kind)
        """,
        "other constructor arguments",
        "with affine = False: state_dict differs in norm.weight",
    ),
    "a number on the model": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = self.norm(self.conv(x))
                return self.drop(F.leaky_relu(self.act(x), 0.1)) * self.widths[1]
        """,
        "attributes set later",
        "after slope = ",
    ),
    "an item of a list": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                return self.drop(F.leaky_relu(self.act(self.norm(self.conv(x))), self.slope)) * 2.0
        """,
        "attributes set later",
        "after widths[1] = ",
    ),
    "a number of a submodule": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = F.group_norm(self.conv(x), self.norm.num_groups, self.norm.weight, self.norm.bias, 1e-5)
                return self.drop(F.leaky_relu(self.act(x), self.slope)) * self.widths[1]
        """,
        "attributes set later",
        "eps",
    ),
    "a word of a submodule": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = F.gelu(self.norm(self.conv(x)))
                return self.drop(F.leaky_relu(x, self.slope)) * self.widths[1]
        """,
        "attributes set later",
        "act",
    ),
    "a probability": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = F.leaky_relu(self.act(self.norm(self.conv(x))), self.slope)
                return F.dropout(x, 0.25, self.drop.training) * self.widths[1]
        """,
        "attributes set later",
        "p = ",
    ),
    "another submodule": (
        NORM,
        """
        class ModelNew(Model):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self._first = [self.norm, self.act]

            def forward(self, x):
                x = self._first[1](self._first[0](self.conv(x)))
                return self.drop(F.leaky_relu(x, self.slope)) * self.widths[1]
        """,
        "attributes set later",
        "another one with",
    ),
    "another activation": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = self.norm(self.conv(x))
                x = F.gelu(x, approximate=getattr(self.act, "approximate", "none"))
                return self.drop(F.leaky_relu(x, self.slope)) * self.widths[1]
        """,
        "attributes set later",
        "after act = Tanh",
    ),
    "another parameter": (
        NORM,
        """
        class ModelNew(Model):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self._weight = [self.conv.weight]

            def forward(self, x):
                x = self.norm(torch.func.functional_call(self.conv, {"weight": self._weight[0]}, x))
                return self.drop(F.leaky_relu(self.act(x), self.slope)) * self.widths[1]
        """,
        "attributes set later",
        "another parameter",
    ),
    "hooks that never fire": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = self.norm.forward(self.conv(x))
                return self.drop(F.leaky_relu(self.act(x), self.slope)) * self.widths[1]
        """,
        "hooks",
        "hook of norm: times it fired is 0 instead of 1",
    ),
    "hooks that fire twice": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                self.act(x)
                return super().forward(x)
        """,
        "hooks",
        "hook of act: times it fired is 2 instead of 1",
    ),
    "hooks that are not heard": (
        NORM,
        """
        class ModelNew(Model):
            def forward(self, x):
                x = self.conv(x)
                self.norm(x)
                x = self.norm.forward(x)
                return self.drop(F.leaky_relu(self.act(x), self.slope)) * self.widths[1]
        """,
        "hooks",
        "output 0",
    ),
    "a counter that does not count": (
        STATE,
        """
        class ModelNew(Model):
            def forward(self, x):
                y = super().forward(x)
                self.calls = 1
                return y
        """,
        "several calls in a row",
        "attribute calls of call 2 is 1 instead of 2",
    ),
    "a list that does not grow": (
        STATE,
        """
        class ModelNew(Model):
            def forward(self, x):
                self.seen = []
                return super().forward(x)
        """,
        "several calls in a row",
        "attribute seen of call 2",
    ),
    "a hidden state that is lost": (
        STATE,
        """
        class ModelNew(Model):
            def forward(self, x):
                self.hidden = None
                return super().forward(x)
        """,
        "several calls in a row",
        "of call 2",
    ),
    "a loss that is not kept": (
        AUX,
        """
        class ModelNew(Model):
            def forward(self, x):
                y = super().forward(x)
                del self.aux_loss
                return y
        """,
        "state on self",
        "aux_loss is not set",
    ),
    "a loss without its gradient": (
        AUX,
        """
        class ModelNew(Model):
            def forward(self, x):
                y = super().forward(x)
                self.aux_loss = self.aux_loss.detach()
                return y
        """,
        "state on self",
        "attribute aux_loss requires a gradient is False instead of True",
    ),
    "a name of its own": (
        AUX,
        """
        class ModelNew(Model):
            def forward(self, x):
                self.last = x
                return super().forward(x)
        """,
        "state on self",
        "last is set",
    ),
    "no gradients": (
        NORM,
        """
        class ModelNew(Model):
            @torch.no_grad()
            def forward(self, x):
                return super().forward(x)
        """,
        "gradients there or not",
        "whether output 0 requires a gradient is False instead of True",
    ),
    "a gradient too many": (
        DETACHED,
        """
        class ModelNew(Model):
            def forward(self, x):
                y, _ = super().forward(x)
                z = y * 2
                return y, z.detach() + 0 * z
        """,
        "gradients there or not",
        "whether output 1 requires a gradient is True instead of False",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
@pytest.mark.sampled(3)
def test_what_does_not_follow_is_different(name: str, tmp_path: Path) -> None:
    model, new, check, words = CHEATS[name]
    verdict = judged(tmp_path, model, new)
    assert not verdict.passed
    assert words in failed(verdict).get(check, ""), failed(verdict)


@pytest.mark.parametrize("model", [NORM, STATE, AUX, DETACHED], ids=["norm", "state", "loss", "detached"])
def test_a_copy_follows(model: str, tmp_path: Path) -> None:
    verdict = judged(tmp_path, model, COPY)
    assert verdict.passed, failed(verdict)
    for name in ("attributes set later", "hooks", "state on self", "several calls in a row", "gradients there or not"):
        assert named(verdict, name).status == "held"


GUARDED = """
    class ModelNew(Model):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self._planned = self._now()

        def _now(self):
            parts = [self.conv, self.norm, self.act, self.drop]
            hooked = [m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in parts]
            read = self.norm.num_groups, self.norm.eps, getattr(self.act, "approximate", None), self.slope, self.widths[1], self.conv.stride
            rest = self.conv.padding, self.conv.dilation, self.conv.groups, self.conv.padding_mode
            return [type(m) for m in parts], read, rest, any(hooked)

        def forward(self, x):
            if self._now() != self._planned or x.dim() != 3 or not len(x) or self.norm.num_groups != 4:
                return super().forward(x)
            x = F.conv1d(x, self.conv.weight, self.conv.bias)
            groups = x.reshape(len(x), 4, -1)
            variance, mean = torch.var_mean(groups, -1, keepdim=True, correction=0)
            x = ((groups - mean) * torch.rsqrt(variance + 1e-5)).reshape(x.shape)
            x = x * self.norm.weight[:, None] + self.norm.bias[:, None] if self.norm.affine else x
            return self.drop(F.leaky_relu(F.gelu(x), self.slope)) * self.widths[1]
"""


def test_another_computation_with_guards_follows(tmp_path: Path) -> None:
    """As a file with kernels does: its own arithmetic for what was planned, the original's forward for the rest."""
    verdict = judged(tmp_path, NORM, GUARDED)
    assert verdict.passed, failed(verdict)
    assert named(verdict, "other constructor arguments").status == "held"


def test_for_inference_alone_gradients_are_left_out(tmp_path: Path) -> None:
    new = "class ModelNew(Model):\n    @torch.no_grad()\n    def forward(self, x):\n        return super().forward(x)\n"
    verdict = judged(tmp_path, NORM, new, Options(forward_only=True))
    assert verdict.passed, failed(verdict)
    left_out = [check.name for check in verdict.checks if "forward only" in check.detail]
    of_gradients = ["gradients there or not", "gradients", "gradients of their own", "second derivatives", "backward in other ways"]
    assert left_out == of_gradients
    assert all(named(verdict, name).status == "skipped" for name in left_out)


def test_the_models_are_left_as_they_were(tmp_path: Path) -> None:
    """Checks that change attributes, parameters and state put them back: what comes after them sees nothing of it."""
    new = """
        class ModelNew(Model):
            built = []

            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.built.append(self)
    """
    (tmp_path / "model.py").write_text(HEAD + NORM.lstrip())
    problem = load_problem(tmp_path / "model.py")
    candidate = load_candidate(problem.source + "\n\n" + textwrap.dedent(new), "host")
    assert verify(problem, candidate).passed
    model = candidate.module.ModelNew.built[0]
    fresh = candidate.module.Model(6)
    assert [str(m) for m in model.children()] == [str(m) for m in fresh.children()]
    assert (model.slope, model.widths, model.norm.eps) == (0.1, [1.0, 2.0], 1e-5)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


def test_a_check_that_looked_at_nothing_is_skipped(tmp_path: Path) -> None:
    model = """
        class Model(nn.Module):
            def forward(self, x):
                return x.argmax(-1)


        def get_inputs():
            return [torch.randn(8, 16)]


        def get_init_inputs():
            return []
    """
    verdict = judged(tmp_path, textwrap.dedent(model), COPY, Options(assume_finite=True))
    assert verdict.passed, failed(verdict)
    left_out = {check.name: check.detail for check in verdict.checks if check.status == "skipped"}
    assert {"gradients", "gradients of their own", "second derivatives", "kernels launched", "kernels matter"} <= set(left_out)
    assert {"any order of threads", "non-finite values", "buffers"} <= set(left_out)
    assert {"output's own spread", "other constructor arguments", "attributes set later"} <= set(left_out)
    assert all(left_out.values())
    assert named(verdict, "seeds").status == named(verdict, "precision").status == "held"


def test_where_nothing_was_compared_nothing_passes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HEAD + DETACHED.lstrip())
    problem = load_problem(tmp_path / "model.py")
    candidate = load_candidate(problem.source + "\n\n" + COPY, "host")
    found = subjects(problem, candidate, candidate.build_model(problem))
    sizes = found.source.sizes
    trial = Trial(found, Shapes(sizes, sizes, sizes, {}), (), True)
    assert values.group("seeds")(trial).skipped
    assert not values.precision(trial).passed and not values.own_spread(trial).passed


CACHED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.mask = nn.Linear(8, 8), None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.linspace(-1, 1, 8).sigmoid()
        return torch.tanh(self.inner(x) * self.mask) * 2

def get_inputs():
    return [torch.randn(5, 8)]

def get_init_inputs():
    return []
"""


def test_kernels_of_later_calls_are_trained(tmp_path: Path) -> None:
    """A table that the first call makes is constant from then on: only calls in a row, with gradients, launch kernels backward."""
    path = tmp_path / "model.py"
    path.write_text(CACHED)
    run = optimize(load_problem(path), Options(target="host", seeds=1))
    assert run.verdict.passed and not run.degraded
    assert set(run.emitted.training.values()) == {KERNELS}
    text = run.text.replace('_launch("linear_grad"', 'if False: _launch("linear_grad"')
    assert text != run.text
    verdict = verify(load_problem(path), load_candidate(text, "host"), options=Options(target="host", seeds=1))
    assert "several calls in a row" in {check.name for check in verdict.checks if not check.passed}
