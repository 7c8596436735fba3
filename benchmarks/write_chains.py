"""Writes benchmarks/chains/: 20 convolution chains from the zoo's generator, by seeds that the zoo does not use.

    python benchmarks/write_chains.py

Drawn once, before anything was tuned on them: 2 d and 3 d, plain and transposed, float32, five of each. They are timed by

    PYTHONPATH=src python3 benchmarks/zoo_gpu.py --compile benchmarks/chains
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "zoo"))

from generate import draw  # noqa: E402

KINDS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
EACH, FIRST_SEED = 5, 1000


def main() -> None:
    (HERE / "chains").mkdir(exist_ok=True)
    missing, seed = dict.fromkeys(KINDS, EACH), FIRST_SEED
    while any(missing.values()):
        name, text = draw(seed)
        seed += 1
        kind = next((k for k in KINDS if name.split("_", 1)[1].startswith(f"{k}_")), None)
        if kind is None or not missing[kind] or "bfloat16" in text:
            continue
        missing[kind] -= 1
        (HERE / "chains" / name).write_text(text)


if __name__ == "__main__":
    main()
