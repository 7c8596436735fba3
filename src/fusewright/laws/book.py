"""All laws, in the order in which they are tried at a node: that of these modules, and in each that of its text.

First what needs no arithmetic, then what makes large work vanish, then what only saves a pass. To add a law, write one function under
`@law(...)` with examples it must and must not apply to; its docstring is the identity, and `tests/laws` checks the rest.
"""

from . import chains, contractions, sums, scans, convolution, matrices, pools, folding, bounded, moments, drawn  # isort: skip
from .examples import Example
from .law import LAWS

__all__ = [
    "LAWS", "Example", "bounded", "chains", "contractions", "convolution", "drawn", "folding", "matrices", "moments", "pools", "scans",
    "sums",
]  # fmt: skip
