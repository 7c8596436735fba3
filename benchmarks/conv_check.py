"""Runs the convolution tests of the host target on the GPU, many at a time (most of the time is nvcc's).

FUSEWRIGHT_CONV_TARGET=cuda PYTHONPATH=src:tests python3 benchmarks/conv_check.py
"""

from __future__ import annotations

import itertools
import traceback
from concurrent.futures import ThreadPoolExecutor

from kernels.conv import test_conv_host as tests


def cases():
    for name, function in vars(tests).items():
        if not name.startswith("test_") or name == "test_sanitized":
            continue
        marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        names = [mark.args[0] for mark in marks]
        for values in itertools.product(*(mark.args[1] for mark in marks)):
            yield name, function, dict(zip(names, values, strict=False))


def attempt(case) -> str | None:
    name, function, arguments = case
    try:
        function(**arguments)
    except Exception:
        return f"{name} {arguments}: {traceback.format_exc().splitlines()[-1][:400]}"
    return None


def main() -> None:
    everything = list(cases())
    with ThreadPoolExecutor(16) as pool:
        found = [message for message in pool.map(attempt, everything) if message]
    print(f"{len(everything) - len(found)} of {len(everything)} passed")
    print("\n".join(found))
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
