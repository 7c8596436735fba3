"""A few seeds of the fuzzer, and the fuzzer itself. `make fuzz` runs many more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import fuzz
from chains import draw, model_text

SEEDS = range(1000, 1020)  # not those that `make fuzz` starts with


def test_a_few_seeds_are_clean(tmp_path: Path) -> None:
    failures = fuzz.examine([draw(seed) for seed in SEEDS], tmp_path)
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", ["address", "undefined", "thread"])
def test_some_seeds_under_a_sanitizer(sanitize: str, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = ["--start", "2000", "--seeds", "4", "--together", "4"]
    status = fuzz.sanitized(sanitize, [*chosen, "--sanitize", sanitize, "--inside"])
    assert status == 0, "".join(capfd.readouterr())


def test_every_chain_is_a_model_and_the_same_each_time() -> None:
    for seed in range(60):
        chain, namespace = draw(seed), {}
        assert model_text([chain]) == model_text([draw(seed)])
        exec(model_text([chain]), namespace)
        with torch.no_grad():
            results = namespace["Model"]()(*namespace["get_inputs"]())
        assert tuple(results[0].shape) == chain.last.shape
        assert 2 <= len(chain.values) - 1 <= 8


def test_a_failure_is_printed_as_a_model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong operator among several chains: the failure names the chain that holds it and can be run on its own."""
    from fusewright.ops import registry

    chosen = [draw(seed) for seed in range(40)]
    guilty = next(c for c in chosen if sum("torch.tanh(" in line for line in c.lines) == 1)
    innocent = next(c for c in chosen if not any("tanh" in line or "gelu" in line for line in c.lines))
    record = registry.RECORDS[torch.ops.aten.tanh.default]

    def lower(build: object, node: object) -> object:
        value = build.value[node.args[0].name]  # type: ignore[attr-defined]
        return build.pointwise("", lambda x: x * 0.9, [value], node.dtype)  # type: ignore[attr-defined]

    wrong = type(record)(record.name, record.targets, lower, pointwise=True)
    monkeypatch.setitem(registry.RECORDS, torch.ops.aten.tanh.default, wrong)
    (failure,) = fuzz.examine([innocent, guilty], tmp_path)
    assert failure.seeds == (guilty.seed,) and "times its budget" in failure.why
    assert failure.text == model_text([guilty]) and "fusewright optimize" in str(failure)
