"""Errors of a candidate beside eager's, as the record and the terminal show them. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..verify.verifier import Verdict


def errors_record(verdict: Verdict) -> dict[str, Any]:
    """Ours and eager's against float64, over the rms: of results, and of gradients; None where none was compared."""
    found = {"results": verdict.errors, "gradients": verdict.gradient_errors}
    return {of: None if e is None else {"ours": e.ours, "eager": e.eager, "tensor": e.tensor} for of, e in found.items()}
