"""Text that kernels on the tensor cores share: sizes, parameters, outputs, launches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from ...ir.expr import Pointer
from .conv_spec import Conv, Epilogue, OverPositions, Param


def tidy(source: str) -> str:
    """Drop the lines that a placeholder left empty."""
    lines = [line.rstrip() for line in source.splitlines()]
    left = [a for a, b in zip(lines, [*lines[1:], "end"], strict=False) if a or (b and b[0] not in " }#")]
    return "\n".join(left).strip("\n") + "\n"


def size_names(conv: Conv) -> tuple[str, ...]:
    return ("in_d", "in_h", "in_w")[3 - conv.dims :]


def extra_params(epilogue: Epilogue) -> tuple[Param, ...]:
    """The bodies' parameters, each once."""
    return tuple(dict.fromkeys(param for body in epilogue.bodies for param in body.params))


def parameter_lines(lines: Iterable[Sequence[Param]]) -> str:
    """Of a kernel, some in each line."""
    return ",\n       ".join(", ".join(param.in_kernel for param in line) for line in lines if line)


def by_vectors(test: str, launch: Callable[[int], Sequence[str]]) -> Iterator[str]:
    """Launches of the kernel that reads four elements at a time where `test` holds, else of the one that reads single ones."""
    if not test:
        yield from launch(1)
        return
    for vector, condition in ((4, f"if ({test}) {{"), (1, "} else {")):
        yield condition
        yield from (f"  {line}" for line in launch(vector))
    yield "}"


def launched(kernel: str, grid: str, threads: str, shared: str, call: str) -> list[str]:
    """The launch of a kernel with so much shared memory."""
    return [
        f"cudaFuncSetAttribute({kernel}, cudaFuncAttributeMaxDynamicSharedMemorySize, {shared});",
        f"{kernel}<<<{grid}, {threads}, {shared}, (cudaStream_t)stream>>>({call});",
    ]


def outputs(conv: Conv, epilogue: Epilogue) -> tuple[Param, ...]:
    out, saved = (Param(Pointer(conv.element), name) for name in ("out", "saved"))
    also = (saved,) if conv.saves else ()
    if isinstance(epilogue.reduce, OverPositions):
        return (*([out] if epilogue.stored else []), Param(Pointer(epilogue.reduce.accumulator), "partials"), *also)
    return (out, *also)


def out_size(conv: Conv, axis: int) -> str:
    """The output size of a widened convolution along an axis, as C text over in_*."""
    size, stride = ("in_d", "in_h", "in_w")[axis], conv.stride[axis]
    span = conv.dilation[axis] * (conv.kernel[axis] - 1) + 1
    if conv.is_phased:
        least = span - 2 * conv.padding[axis] + conv.output_padding[axis] - stride
        return f"{size} * {stride} {'-' if least < 0 else '+'} {abs(least)}"
    reach = span - 2 * conv.halo[axis]
    room = size if reach == 0 else f"({size} - {reach})" if reach > 0 else f"({size} + {-reach})"
    return f"{room} / {stride} + 1" if stride > 1 else f"{room} + 1"
