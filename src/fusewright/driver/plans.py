"""What an optimised module runs, as a record: it is kept in the cache, and pickled with the module."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..frontend.autocast import Autocast
from ..frontend.trees import Flat, Tree
from ..options import Options, cache_root, private

TRAINING, EVALUATION = "training", "evaluation"
DEFAULT, REDUCE_OVERHEAD = "default", "reduce-overhead"  # modes of `fusewright.optimize`
FOLDER = "modules"  # of the cache


@dataclass(frozen=True)
class Example:
    """What one input was: of a tensor its type and shape, of whole numbers also their range, of a plain value that."""

    value: Any = None
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    least: int = 0
    most: int = 0

    def __str__(self) -> str:
        if self.dtype is None:
            return repr(self.value)
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"

    @staticmethod
    def of(value: Any) -> Example:
        """Without the range of whole numbers, which has to be looked for."""
        return Example(None, value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else Example(value)

    @staticmethod
    def whole(value: Any) -> Example:
        found = Example.of(value)
        if found.dtype is None or found.dtype.is_floating_point or found.dtype == torch.bool:
            return found
        return replace(found, least=int(value.min()), most=int(value.max()))


@dataclass(frozen=True)
class PlanText:
    """One plan: the text that was emitted for it, what was found out about it, and what it does in words."""

    text: str
    report: Mapping[str, Any]
    explained: str
    leaves_nothing: bool = False  # a call changes no buffer, input or attribute: it only returns


@dataclass(frozen=True)
class Plans:
    """The plans of a module by the mode that they are for. One text may be there for both."""

    target: str  # cuda | host: where its kernels run
    options: Options
    texts: Mapping[str, PlanText] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()  # of the inputs, or of the leaves of them where they are `flat`
    flat: Flat | None = None  # where calls are not a list of tensors and plain values
    result: Tree | None = None  # and then: what they return
    autocast: Autocast | None = None  # that is on around the calls that they are for
    mode: str = DEFAULT
    fault: str = ""  # why there is no plan
    cached: bool = False

    @property
    def key(self) -> str:
        """Tells the plans of one class apart, and what is known about them."""
        parts = [self.target, self.fault, repr(self.options), repr(self.cached), repr(self.flat), repr(self.result), repr(self.examples)]
        parts += [repr(self.autocast), self.mode]
        parts += [text for mode in sorted(self.texts) for text in (mode, self.texts[mode].text)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def __deepcopy__(self, memo: Any) -> Plans:
        return self


def recall(key: str) -> Plans | None:
    """The plans that were kept under a key."""
    try:
        private(cache_root())
        found = pickle.loads(file_of(key).read_bytes())
    except Exception:  # nothing there, or nothing that can be read: a class of the user's may have moved
        return None
    return replace(found, cached=True) if isinstance(found, Plans) else None


def remember(key: str, plans: Plans) -> None:
    """Keep them if that is possible; a cache that cannot be written only costs time."""
    try:
        data, path = pickle.dumps(plans), file_of(key)
        private(private(cache_root()) / path.parent.name)
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError):  # or a class of the user's is in no module
        return


def file_of(key: str) -> Path:
    return cache_root() / FOLDER / f"{key}.pickle"


def examples_of(values: Sequence[Any]) -> tuple[Example, ...]:
    return tuple(map(Example.whole, values))
