"""Numbers as the terminal and the page write them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard


def times(ratio: float) -> str:
    """1.53×, 19.4×, 130×: three digits are all a measurement has."""
    if not math.isfinite(ratio):
        return "?×"
    digits = 2 if ratio < 10 else 1 if ratio < 100 else 0
    return f"{ratio:.{digits}f}×"


def shown_ms(ms: float) -> str:
    """0.0183 ms, 0.392 ms, 6.09 ms: three digits."""
    if not math.isfinite(ms):
        return "? ms"
    if ms <= 0:
        return "0 ms"
    digits = max(0, 2 - math.floor(math.log10(ms)))
    return f"{ms:.{min(digits, 6)}f} ms"


def shown_amount(value: Any, unit: str) -> str:
    """520093696 B reads as 520 MB; nothing where there is no number."""
    if not is_number(value) or value <= 0:
        return ""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def percent(share: Any) -> str:
    if not is_number(share):
        return ""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def is_number(value: Any) -> TypeGuard[float]:
    """A number that can be drawn: not missing, not a bool, not Inf."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def counted(number: int, noun: str) -> str:
    """1 model, 2 models."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


STATUSES = ("held", "skipped", "failed")


def status_of(check: Mapping[str, Any]) -> str:
    """Of a check in a record; older ones say only whether it passed."""
    found = check.get("status")
    return found if found in STATUSES else "held" if check["passed"] else "failed"


def training_words(training: Mapping[str, Any]) -> str:
    """How many regions are computed by what, where gradients are asked for."""
    if training["original"]:
        return "the original's forward"
    counts = Counter(str(region["by"]) for region in training["regions"])
    return "; ".join(f"{by}: {count} region{'' if count == 1 else 's'}" for by, count in counts.items()) or "the original's forward"


def errors_shown(errors: Mapping[str, Any]) -> list[str]:
    """Ours and eager's against float64 side by side, of results and of gradients.

    >>> errors_shown({"results": {"ours": 2e-6, "eager": 1e-6, "tensor": "output 0"}, "gradients": None})
    ['results: largest error over rms 2.0e-06, eager 1.0e-06 (output 0)']
    """
    found = [(of, errors[of]) for of in ("results", "gradients") if errors.get(of) is not None]
    told = [(of, e) for of, e in found if is_number(e.get("ours")) and is_number(e.get("eager"))]
    return [f"{of}: largest error over rms {e['ours']:.1e}, eager {e['eager']:.1e} ({e['tensor']})" for of, e in told]
