"""PyTorch's tracer, without work whose results nobody here reads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """A trace in here gives the same graph, names and guards as elsewhere, sooner. What a version of PyTorch lacks is left alone."""
    import torch._dynamo  # which the exporter and fake tensors need: half a second
    import torch._export.utils as export_utils

    with contextlib.ExitStack() as stack:
        # Filling it takes a quarter of the time, and little is met again.
        stack.enter_context(torch._dynamo.config.patch(fake_tensor_cache_enabled=False))
        # The names of all operators made of others, looked up anew for each of PyTorch's two dozen libraries.
        if hasattr(export_utils, "_materialize_cpp_cia_ops"):
            once = functools.cache(export_utils._materialize_cpp_cia_ops)
            stack.enter_context(mock.patch.object(export_utils, "_materialize_cpp_cia_ops", once))
        yield
