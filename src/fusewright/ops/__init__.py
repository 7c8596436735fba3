"""Operators: one record for each, in the module of its kind. Importing this package fills the registry.

To add a pointwise operator, add one `pointwise(...)` line in `pointwise.py`; one with structure is a function under
`@lowers(...)`, built from the primitives of `ir/prims.py`.
"""

from . import (
    adaptive,
    indexed,
    losses,
    norms,
    pieces,
    placement,
    pointwise,
    pools,
    reductions,
    resizing,
    scans,
    structured,
)

__all__ = [
    "adaptive", "indexed", "losses", "norms", "pieces", "placement", "pointwise", "pools", "reductions", "resizing", "scans", "structured",
]  # fmt: skip
