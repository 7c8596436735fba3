"""The laws. Each is one function: it looks at a node, and gives what may stand in its place, or None.

Its docstring is the identity. At a node, laws are tried in the order of these files and of their text: first what needs
no arithmetic, then what makes large work vanish, then what only saves a sweep. To add a law, write one function under
`@law(...)` with examples it must and must not apply to; `tests/laws` checks the rest.
"""

from . import chains, contractions, sums, scans, convolution, matrices, pools, folding, bounded, moments  # isort: skip
from .examples import Example

__all__ = ["Example", "bounded", "chains", "contractions", "convolution", "folding", "matrices", "moments", "pools", "scans", "sums"]
