"""Under a sanitizer: `sanitized_run.py library launcher arguments`, each argument an int or {"floats": count}; {"floats": count,
"first": number} begins with that number, which may be "inf".

No torch: importing it takes seconds under a sanitizer. Buffers come from malloc, which the sanitizer watches.
"""

import ctypes
import json
import sys

malloc = ctypes.CDLL(None).malloc
malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]


def buffer(floats: int, first: str | None = None) -> ctypes.c_void_p:
    pointer = malloc(4 * floats)
    values = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
    for i in range(floats):
        values[i] = (i * 7919 % 1000) / 1000 - 0.5
    if first is not None:
        values[0] = float(first)
    return ctypes.c_void_p(pointer)


library = ctypes.CDLL(sys.argv[1])
launcher = getattr(library, sys.argv[2])
launcher.restype = ctypes.c_char_p
arguments = [buffer(**a) if isinstance(a, dict) else ctypes.c_longlong(a) for a in json.loads(sys.argv[3])]
message = launcher(*arguments, ctypes.c_void_p(None))
if message:
    raise SystemExit(message.decode())
