"""The CUDA sources of these tests, as text."""

from __future__ import annotations

import re
from pathlib import Path

from fusewright.target.helpers import of_file

HERE = Path(__file__).parent
PRELUDE = "\n".join(helper.text for file in ("prelude_ptx.cuh", "prelude_mma.cuh") for helper in of_file(file))
RIGHT = (HERE / "right.cu").read_text()


def _launcher(match: re.Match[str]) -> str:
    name, kernel, geometry = match[1], match[2], match[3]
    return (
        f'extern "C" const char* {name}(const float* x, float* y, void*) '
        f"{{ {kernel}<<<{geometry}>>>(x, y); return launch_error(); }}"
    )


WRONG = re.sub(r"^LAUNCH\((\w+), ([\w<>]+), (.*)\)$", _launcher, (HERE / "wrong.cu").read_text(), flags=re.MULTILINE)
