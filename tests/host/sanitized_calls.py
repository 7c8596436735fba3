"""Run under a sanitizer: `sanitized_calls.py library calls`. Buffers come from malloc, which the sanitizer watches.

`calls` is JSON, [[kernel, [argument, ...]], ...]; an argument is an int, or "n" for a buffer of n floats (1, 2, ...).
No torch: importing it takes seconds under a sanitizer.
"""

from __future__ import annotations

import ctypes
import json
import sys

library = ctypes.CDLL(sys.argv[1])
for kernel, arguments in json.loads(sys.argv[2]):
    values: list[object] = []
    for argument in arguments:
        if isinstance(argument, int):
            values.append(ctypes.c_longlong(argument))
        else:
            count = int(argument)
            values.append((ctypes.c_float * count)(*(float(i % 16 + 1) for i in range(count))))
    launcher = getattr(library, kernel)
    launcher.restype = ctypes.c_char_p
    message = launcher(*values, ctypes.c_void_p(None))
    if message is not None:
        sys.exit(message.decode())
print("nothing found")
