"""A model file (`Model`, `get_inputs`, `get_init_inputs`) becomes a `Problem`, or one sentence that says why not."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import itertools
import pickle
import random
import re
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from ..errors import Refused

MODULES = "_fusewright_model_"  # how the names of loaded files begin
_serial = itertools.count()  # makes the name of each loaded file unique, so that two files named alike do not meet


@dataclass(frozen=True)
class Problem:
    """A model file, loaded and checked.

    `path` is absolute and is also the file name in the code objects, so a stack trace's file can be compared with it.
    """

    path: Path
    source: str
    namespace: ModuleType  # has Model, get_inputs, get_init_inputs
    checked: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)  # made while loading, until the next is asked for

    def model(self, seed: int = 0) -> nn.Module:
        """`Model(*get_init_inputs())`, the same for the same seed; the caller's random state is left as it was."""
        checked = self.checked.pop("model", None)
        if checked is not None and seed == 0:
            return checked
        with _user_code(self.path, "get_init_inputs()", _defined(self, "get_init_inputs")), seeded_everything(seed):
            arguments = self.namespace.get_init_inputs()
        _check_sequence(self, "get_init_inputs", arguments)
        with _user_code(self.path, "Model(*get_init_inputs())", _defined(self, "Model")), seeded_everything(seed):
            model = self.namespace.Model(*arguments)
            parameters = dict(model.named_parameters())
        _check_model(self, model, parameters)
        return model

    @property
    def behind(self) -> type[nn.Module] | None:
        """The class that emitted text derives `ModelNew` from, where it has no source to stand behind; None: the file's own."""
        return None

    @property
    def trained(self) -> frozenset[int]:
        """Positions of inputs whose gradients training asks for: those of a file's are data."""
        return frozenset()

    def arguments(self, seed: int = 0) -> list[Any] | None:
        """What the constructor takes; None where nobody knows."""
        with seeded_everything(seed):
            return list(self.namespace.get_init_inputs())

    def built(self, kind: type[nn.Module], seed: int = 0) -> nn.Module:
        """A candidate's class, made as the original was: from the same arguments, under the same seed."""
        arguments = in_terms_of(kind, self.namespace, self.arguments(seed) or [])
        with seeded_everything(seed):
            return kind(*arguments)

    @property
    def siblings(self) -> tuple[str, ...]:
        """The modules beside the file that it imports, or that these do."""
        nodes, folder = list(ast.walk(ast.parse(self.source))), self.path.parent
        named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
        there = {top for name in named if (folder / f"{(top := name.partition('.')[0])}.py").exists() or (folder / top).is_dir()}
        found = {top for top in there if top not in sys.modules or _lies_in(folder, top)}  # a library may be called so too
        return tuple(sorted(found | {name.partition(".")[0] for name in _imported.get(folder, {}) if _lies_in(folder, name)}))

    @property
    def reads_its_place(self) -> bool:
        """The file's code says `__file__`."""
        return any(isinstance(node, ast.Name) and node.id == "__file__" for node in ast.walk(ast.parse(self.source)))

    def inputs(self, seed: int = 0) -> list[Any]:
        """`get_inputs()` as a list, the same for the same seed; the caller's random state is left as it was."""
        checked = self.checked.pop("inputs", None)
        if checked is not None and seed == 0:
            return checked
        with _user_code(self.path, "get_inputs()", _defined(self, "get_inputs")), seeded_everything(seed):
            values = self.namespace.get_inputs()
        _check_sequence(self, "get_inputs", values)
        _check_inputs(self, values)
        return [value.detach() if isinstance(value, torch.Tensor) else value for value in values]


def in_terms_of(kind: type, home: ModuleType, values: list[Any]) -> list[Any]:
    """The values for a class: what is of classes that `home` defines is of those that are called so where the class is defined (a
    configuration, a member of an enumeration). Values of which there is nothing such, or that cannot be copied, stay themselves."""
    there = sys.modules.get(kind.__module__)
    if there is None or there is home:
        return values
    text = io.BytesIO()
    try:
        pickle.dump(values, text)
        text.seek(0)
        reader = _Reader(text, home.__name__, there)
        copied = reader.load()
    except Exception:  # a lambda, an open file: pickle raises many kinds
        return values
    return copied if reader.replaced else values


class _Reader(pickle.Unpickler):
    """Finds `there` what was written as of the module called `home`."""

    def __init__(self, text: io.BytesIO, home: str, there: ModuleType):
        super().__init__(text)
        self.home, self.there, self.replaced = home, there, False

    def find_class(self, module: str, name: str) -> Any:
        if module == self.home and hasattr(self.there, name.partition(".")[0]):
            self.replaced = True
            return functools.reduce(getattr, name.split("."), self.there)
        return super().find_class(module, name)


def load_problem(path: Path) -> Problem:
    """Run a model file in a module of its own and check everything a later stage relies on."""
    path = Path(path).absolute()
    return problem_of_text(path, _read(path))


def problem_of_text(path: Path, source: str) -> Problem:
    """The same of a text that could stand there."""
    problem = Problem(path, source, _execute(path, source))
    try:
        _check_names(problem)
        made = {"inputs": problem.inputs(), "model": problem.model()}
    except BaseException:
        del sys.modules[problem.namespace.__name__]
        raise
    problem.checked.update(made)
    return problem


def check_output(output: Any, path: Path) -> None:
    """Refuse what `forward` returned if there is no tensor in it to compare."""
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    if not tensors:
        raise Refused(f"{shown(path)}: Model.forward() returned {_kind(output)}, which holds no tensor")


def shown(path: Path) -> str:
    """A path as a user would write it: relative where it lies below the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


# ---- reading and running the file ----


def _read(path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Refused(f"{shown(path)}: no such file") from None
    except IsADirectoryError:
        raise Refused(f"{shown(path)}: a directory, not a model file") from None
    except OSError as error:
        raise Refused(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    try:
        return importlib.util.decode_source(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Refused(f"{shown(path)}:{line}: not Python: not {error.encoding} text") from None
    except (SyntaxError, LookupError) as error:
        raise Refused(f"{shown(path)}:1: not Python: {_first_line(error)}") from None


def _execute(path: Path, source: str) -> ModuleType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise Refused(f"{shown(path)}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise Refused(f"{shown(path)}: not Python: {_first_line(error)}") from None

    name = f"{MODULES}{next(_serial)}_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    namespace = ModuleType(name)
    namespace.__file__ = str(path)
    sys.modules[name] = namespace  # pickle and dataclasses look classes up by their module's name
    try:
        with _user_code(path, "importing it", shown(path)), seeded_everything(0):
            exec(code, namespace.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return namespace


@contextmanager
def _user_code(path: Path, doing: str, at: str) -> Iterator[None]:
    """Run the user's code as `python FILE` would, importing from its folder; what it raises becomes one sentence.

    The sentence starts with the line that raised, or with `at` where none of the file's own lines did.
    """
    try:
        with started_as(path), importing_from(path.parent):
            yield
    except (KeyboardInterrupt, Refused):
        raise
    except SystemExit as stop:
        raise Refused(f"{_raised_at(path, stop) or at}: {doing} ended Python with sys.exit({stop.code!r})") from stop
    except BaseException as error:
        message = _first_line(error)
        kind = type(error).__name__
        place = _raised_at(path, error) or at
        raise Refused(f"{place}: {doing} raised {kind}{': ' if message else ''}{message}") from error


@contextmanager
def started_as(path: Path) -> Iterator[None]:
    """The arguments that `python FILE` has: a file that reads them when it is imported does not read ours."""
    before = sys.argv
    sys.argv = [str(path)]
    try:
        yield
    finally:
        sys.argv = before


_imported: dict[Path, dict[str, ModuleType]] = {}  # by folder: modules that files in it imported from beside them


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Import from a folder first, and what lies beside other model files not at all, though it may be called the same."""
    for other, modules in _imported.items():
        for name in (name for name in modules if other != folder and sys.modules.get(name) is modules[name]):
            del sys.modules[name]
    sys.modules.update(_imported.get(folder, {}))
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        new = {name: module for name, module in list(sys.modules.items()) if name not in before and _lies_in(folder, name)}
        _imported.setdefault(folder, {}).update(new)


def _lies_in(folder: Path, name: str) -> bool:
    """A module, or the package that it is part of, lies in this folder itself."""
    top = name.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and Path(file) in (folder / f"{top}.py", folder / top / "__init__.py")


@contextmanager
def seeded_everything(seed: int) -> Iterator[None]:
    """Seed every generator a model file may draw from, and restore them all afterwards."""
    numpy: Any = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)


# ---- checking what it defines and returns ----


def _check_names(problem: Problem) -> None:
    at, names = shown(problem.path), vars(problem.namespace)
    if "Model" not in names:
        raise Refused(f"{at}: defines no class named Model")
    model_class = names["Model"]
    if not isinstance(model_class, type) or not issubclass(model_class, nn.Module):
        raise Refused(f"{_defined(problem, 'Model')}: Model is {_kind(model_class)}, not a subclass of torch.nn.Module")
    for name in ("get_inputs", "get_init_inputs"):
        if name not in names:
            raise Refused(f"{at}: defines no function {name}()")
        if not callable(names[name]):
            raise Refused(f"{at}: {name} is {_kind(names[name])}, not a function")


def _check_sequence(problem: Problem, function: str, values: Any) -> None:
    if not isinstance(values, (list, tuple)):
        raise Refused(f"{_defined(problem, function)}: {function}() returned {_kind(values)}, not a list or tuple")


def _check_inputs(problem: Problem, values: list[Any] | tuple[Any, ...]) -> None:
    at = _defined(problem, "get_inputs")
    for position, value in enumerate(values):
        check_input(value, at, f"item {position} of get_inputs()")
    if not any(isinstance(value, torch.Tensor) for value in values):
        raise Refused(f"{at}: get_inputs() returned no tensor")


def check_input(value: Any, at: str, item: str) -> None:
    """Refuse what no plan can be made for, and what there is nothing to compare with."""
    if _is_plain(value):
        return
    if not isinstance(value, torch.Tensor):
        raise Refused(f"{at}: {item} is {_kind(value)}; only tensors and plain values are supported")
    if value.is_complex():
        raise Refused(f"{at}: {item} is complex ({value.dtype}); only real tensors are supported")
    odd = [word for word in ("quantized", "nested", "meta") if getattr(value, f"is_{word}")]
    if value.layout != torch.strided or odd:
        raise Refused(f"{at}: {item} is not a dense tensor with data ({', '.join([*odd, str(value.layout), str(value.device)])})")
    if value.numel() == 0:
        raise Refused(f"{at}: {item} has size zero (shape {tuple(value.shape)}); there is nothing to compute or compare")


def _is_plain(value: Any) -> bool:
    """A number, a word or nothing, or a list or tuple of such: what a plan is made for and a file can compare with."""
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _check_model(problem: Problem, model: Any, parameters: dict[str, nn.Parameter]) -> None:
    at = _defined(problem, "Model")
    if not isinstance(model, nn.Module):
        raise Refused(f"{at}: Model(...) made {_kind(model)}, not a torch.nn.Module")
    if getattr(model.forward, "__func__", None) is nn.Module.forward:
        raise Refused(f"{at}: Model has no forward()")
    lazy = [name for name, parameter in parameters.items() if is_lazy(parameter)]
    if lazy:
        raise Refused(f"{at}: parameter {lazy[0]} is lazy and has no shape yet; give the layer its input size")


# ---- words ----


def _raised_at(path: Path, error: BaseException) -> str:
    """`file:line` of the innermost frame that is in the user's file, or nothing."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{shown(path)}:{lines[-1]}" if lines else ""


def _defined(problem: Problem, name: str) -> str:
    """`file:line` where a class, function or variable is defined at the top of the file, or the file alone."""
    pattern = rf"^(?:class\s+|def\s+)?{name}\b(?=\s*[:(=\[])"
    lines = [number for number, line in enumerate(problem.source.splitlines(), 1) if re.match(pattern, line)]
    return f"{shown(problem.path)}:{lines[-1]}" if lines else shown(problem.path)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0].strip() if lines else ""
    return text if len(text) <= 200 else text[:197] + "..."


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
