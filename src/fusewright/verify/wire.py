"""Messages between the judge and the process that runs a candidate: plain values and tensors, nothing that could be code.

A message is the length of a header in 8 bytes, the header as JSON, and the bytes of the tensors in the order in which it numbers
them. Our own frozen records travel by name; the judge, which reads what a candidate's process wrote, accepts none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
        torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip
LONGEST = 2**28  # bytes of a header


class Nonsense(Exception):
    """What was read is no message."""


def send(stream: BinaryIO, value: Any) -> None:
    parts: list[bytes] = []
    header = json.dumps({"value": _packed(value, parts), "parts": [len(part) for part in parts]}).encode()
    stream.write(len(header).to_bytes(8, "big") + header)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO, records: Mapping[str, type] | None = None) -> Any:
    """EOFError where the other side has gone, Nonsense where it wrote what is no message."""
    length = int.from_bytes(_exactly(stream, 8), "big")
    if length > LONGEST:
        raise Nonsense("a header that is too long")
    try:
        header = json.loads(_exactly(stream, length))
        parts = [_exactly(stream, int(size)) for size in header["parts"]]
        return _unpacked(header["value"], parts, records or {})
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError, OverflowError, RecursionError) as error:
        raise Nonsense(f"{type(error).__name__}: {error}") from error


def _exactly(stream: BinaryIO, count: int) -> bytearray:
    found = bytearray()
    while len(found) < count:
        more = stream.read(min(count - len(found), 2**24))
        if not more:
            raise EOFError
        found += more
    return found


def _packed(value: Any, parts: list[bytes]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        dtype = str(value.dtype).removeprefix("torch.")
        place = {"size": list(value.shape), "stride": list(value.stride()), "offset": value.storage_offset()}
        return {"tensor": _part(value, parts), "dtype": dtype, **place}
    if isinstance(value, (list, tuple, set, frozenset)):
        return {type(value).__name__: [_packed(item, parts) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_packed(key, parts), _packed(item, parts)] for key, item in value.items()]}
    if is_dataclass(value):
        held = {field.name: _packed(getattr(value, field.name), parts) for field in fields(value)}
        return {"record": type(value).__name__, "fields": held}
    raise TypeError(f"a {type(value).__name__} cannot be sent")


def _part(tensor: Tensor, parts: list[bytes]) -> int:
    """The whole storage, so that strides, gaps and alignment are kept."""
    flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    parts.append(flat.numpy().tobytes())
    return len(parts) - 1


def _unpacked(value: Any, parts: list[bytearray], records: Mapping[str, type]) -> Any:
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        dtype, data = DTYPES[value["dtype"]], parts[value["tensor"]]
        if not data:
            return torch.empty(value["size"], dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).clone().view(dtype).as_strided(value["size"], value["stride"], value["offset"])
    if "record" in value:
        held = {name: _unpacked(item, parts, records) for name, item in value["fields"].items()}
        return records[value["record"]](**held)
    if "dict" in value:
        return {_unpacked(key, parts, records): _unpacked(item, parts, records) for key, item in value["dict"]}
    for name, kind in (("list", list), ("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if name in value:
            return kind(_unpacked(item, parts, records) for item in value[name])
    raise Nonsense(f"a header with {sorted(value)}")
