"""The original, its float64 twin and a candidate's model: run alike, and judged against references."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..frontend.given import deep_copy
from ..frontend.problem import Problem, in_terms_of, seeded_everything
from ..schedule.library import Convolution
from .batch import Part, added
from .budget import Budget, Evidence, Miss, budget, compare, with_outliers
from .candidate import Candidate
from .held import Place, own, put_back
from .observe import Met, Observed, Once, Way, filled_memory, observe, without_onednn
from .reference import (
    OF_MEMORY,
    TO_NEAREST,
    OneOfParts,
    Rounding,
    in_float64,
    rounding_of,
    type_of,
    widen_module,
    widened,
)
from .shrink import Sizes, seconds_for, work
from .variants import AS_GIVEN, OTHER_VALUES, Source, Variant, named_state, overwrite, random_state, renewed

LARGE = 2**21  # parameters
DRAWS = 4  # references with rounding put in at random, before more are drawn
FIRST_DRAWS = 2  # of those, for each variant; the others where two are too few to accept a result
ORDER = (1, 2, 0)  # in which they are drawn: the one that rounds operands to nearest says the least of how far others may err
KNOWN, MOST_KNOWN = 2**18, 64  # elements of a reference that is kept for other checks, and how many are: 128 MB at most
PARKED = 2**23  # elements of gradients in float64
BEYOND_DOUBT = 1e6  # times its budget: no more references are drawn for that
MORE_DRAWS = (12, 4, 1)  # before a candidate is condemned; fewer where so many do not fit in memory
LIKELY_VALUES, LIKELY_PARAMETERS = ("as given", "normal"), ("initial", "random")  # of variants
CPU = torch.device("cpu")
TWIN_SECONDS = 10.0  # estimated for two cores: what one run on the CPU may take before a GPU runs the same
# Operators whose CUDA kernels end the context for good when an index, a class or a probability is none.
ASSERTING = frozenset(
    "embedding embedding_renorm_ _embedding_bag _embedding_bag_forward_only index _unsafe_index index_put index_put_ "
    "_unsafe_index_put _index_put_impl_ index_select index_add index_add_ index_copy index_copy_ index_fill index_fill_ "
    "index_reduce index_reduce_ gather scatter scatter_ scatter_add scatter_add_ scatter_reduce take put put_ "
    "masked_scatter masked_scatter_ one_hot bincount repeat_interleave nll_loss_forward nll_loss2d_forward "
    "multi_margin_loss multilabel_margin_loss_forward _ctc_loss max_unpool2d max_unpool3d _assert_async "
    "binary_cross_entropy bernoulli bernoulli_ multinomial normal poisson binomial _sample_dirichlet".split()
)
OF_THE_CPU = ("not implemented", "same device", "cuda")  # words of errors that say nothing about the values


def _cast(dtype: torch.dtype) -> Callable[[list[Any]], list[Any]]:
    return lambda inputs: [x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]


def _each(change: Callable[[Tensor], Tensor]) -> Callable[[list[Any]], list[Any]]:
    return lambda inputs: [change(x) if isinstance(x, Tensor) and x.dim() else x for x in inputs]


TWISTS: Mapping[str, Callable[[list[Any]], list[Any]]] = {
    "": lambda inputs: inputs,
    "autocast": lambda inputs: inputs,
    "float64": _cast(torch.float64),
    "bfloat16": _cast(torch.bfloat16),
    "float16": _cast(torch.float16),
    "one dimension less": _each(lambda x: x[0]),
    "one dimension more": _each(lambda x: x.unsqueeze(0)),
    "empty batch": _each(lambda x: x[:0]),
}


RESHAPING = ("one dimension less", "one dimension more", "empty batch")


class Elsewhere(Protocol):
    """A candidate's model that runs in another process."""

    @property
    def seconds(self) -> float:
        """Of processor time there."""

    def set_state(self, variant: Variant) -> None: ...

    def run(self, subjects: Subjects, variant: Variant, fill: tuple[float, int | None] | None) -> Observed: ...


@dataclass(frozen=True)
class Construction:
    """One argument of the constructor that is not as the file has it: by position in `get_init_inputs`, or by name."""

    name: str
    value: Any
    position: int | None = None

    def __str__(self) -> str:
        return f"{self.name} = {self.value!r}"

    def build(self, problem: Problem, model: Any) -> nn.Module:
        """Under the seed of the first one."""
        arguments = problem.arguments() or []
        if self.position is not None:
            arguments[self.position] = self.value
        arguments = in_terms_of(model, problem.namespace, arguments)
        with seeded_everything(0):
            made: nn.Module = model(*arguments, **({self.name: self.value} if self.position is None else {}))
        return made


@dataclass(frozen=True)
class References:
    """For one variant: eager's results, the exact ones in fp64, and rounded ones."""

    eager: Observed
    exact: Observed
    draws: tuple[Observed, ...]
    rounding: Rounding
    fine: tuple[Observed, ...] = ()  # rounded as the model's own type is, where the flags allow more
    flagged: tuple[Observed, ...] = ()  # rounded as the flags allow, where the library is more exact than that

    def evidence(self, name: str) -> Evidence:
        exact, eager = self.exact.tensors.get(name), self.eager.tensors[name]
        if exact is None:  # a buffer that did not change in fp64
            exact = eager.double()
        place = eager.device  # from where they were parked
        made = (self.draws, self.fine, self.flagged)
        draws, fine, flagged = (tuple(d.tensors[name].to(place) for d in each if name in d.tensors) for each in made)
        return Evidence(exact.to(place), eager, draws, self.rounding.coarse, fine, flagged)

    def budget(self, name: str) -> Budget:
        return budget(self.evidence(name))

    def says_something(self, name: str) -> bool:
        """Where the original has no number at all for what was drawn, which of NaN, Inf and 0 it has is a matter of the order in which
        it overflows."""
        eager = self.eager.tensors.get(name)
        return eager is None or not eager.is_floating_point() or not eager.numel() or bool(eager.isfinite().any())


@dataclass(frozen=True)
class Subjects:
    """The original, its float64 twin, and the candidate's model; all on one device and in one state."""

    problem: Problem
    candidate: Candidate
    source: Source
    original: nn.Module
    exact: nn.Module
    new: nn.Module  # the original again, where the candidate's is elsewhere
    initial: Mapping[str, Tensor]
    low: torch.dtype
    rounding: Rounding
    modes: Mapping[str, bool]  # each module's `training` as the original came
    twist: str = ""
    drawn: dict[tuple[str, int], Mapping[str, Tensor]] = field(default_factory=dict)
    twin: nn.Module | None = None  # the original on the CPU, where the others are on a GPU
    shrunk: Sizes | None = None  # what the twin runs at where a variant's own sizes would take it too long
    asked: dict[Variant, Exception | None] = field(default_factory=dict)  # what the twin raised
    known: dict[Any, Observed] = field(default_factory=dict)  # small references, which several checks ask for
    quick: dict[Sizes, bool] = field(default_factory=dict)
    built: frozenset[Place] = frozenset()  # attributes that the candidate's model had when it was built
    carried: set[Place] = field(default_factory=set)  # attributes that a call of the original changed: state
    way: Way = field(default_factory=Once)
    elsewhere: Elsewhere | None = None
    construction: Construction | None = None  # how `original` and `new` were built, if not as the file has it

    @property
    def device(self) -> torch.device:
        return self.candidate.device

    def observed(self, model: nn.Module, inputs: list[list[Any]], variant: Variant) -> Observed:
        with self.unmoved(model):
            return self.way(model, inputs, variant)

    def unmoved(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """State that the original keeps on itself is afterwards what it was; buffers are not meant."""
        return put_back(model, self.carried, trusted=model in (self.original, self.exact, self.twin))

    def each_input(self, variant: Variant) -> list[list[Any]]:
        """The inputs of every call that the way makes."""
        return [self.inputs(call) for call in self.way.calls(variant)]

    def built_with(self, construction: Construction) -> Subjects | None:
        """The same with the original so built; None where it cannot be. The candidate is still to be built, and the float64 twin
        is the original itself until it is asked for."""
        model = self.problem.namespace.Model
        try:
            original = construction.build(self.problem, model).to(self.device)
            twin = None if self.twin is None else construction.build(self.problem, model).cpu()
        except (Exception, SystemExit):  # the user's own code
            return None
        return replace(
            self, original=original, exact=original, new=original, initial=_initial(original), modes=_modes(original), twin=twin,
            drawn={}, asked={}, carried=set(), construction=construction,
        )  # fmt: skip

    def by(self, way: Way) -> Subjects:
        """The same, called in another way."""
        return replace(self, way=way, asked={})

    def set_state(self, variant: Variant) -> None:
        """The same parameters, buffers and mode for all three."""
        self._set_state(variant, self.original, self.exact, self.new)
        if self.elsewhere is not None:
            self.elsewhere.set_state(variant)

    def _set_state(self, variant: Variant, *models: nn.Module) -> None:
        values = self._state(variant.parameters, variant.seed)
        if variant.changed in values:
            values = {**values, variant.changed: renewed(values[variant.changed], variant.seed)}
        for model in dict.fromkeys(models):
            if model.training != variant.training:
                model.train(variant.training)  # as a user would, and before the values: what is folded now must follow them
            for name, module in model.named_modules():
                module.training = variant.training and self.modes.get(name, True)
            write_state(model, values)
            if model is self.original:  # on the device as they are: the others take them from there
                values = {**values, **{name: t.detach() for name, t in named_state(model)}}

    def _state(self, parameters: str, seed: int) -> Mapping[str, Tensor]:
        if parameters == "initial":
            return self.initial
        if self.large:
            seed = 0  # drawn once: on its own that takes longer than a forward
        if (parameters, seed) not in self.drawn:
            trained = {name for name, _ in self.original.named_parameters()}
            values = random_state(self.initial, trained, parameters, seed, self.device if self.large else CPU)
            if not self.large:
                return values
            self.drawn[parameters, seed] = values
        return self.drawn[parameters, seed]

    @property
    def large(self) -> bool:
        """So many parameters that handling them costs more than using them."""
        return sum(t.numel() for t in self.initial.values()) > LARGE

    def inputs(self, variant: Variant) -> list[Any]:
        """For a GPU: or what the original raises on the CPU. A bad index or probability ends a CUDA context for good."""
        error = self._refusal(variant)
        if error is not None:
            raise error.with_traceback(None)
        return TWISTS[self.twist](self.source.inputs(variant, self.device))

    def _refusal(self, variant: Variant) -> Exception | None:
        """What the twin raises; each set of values is tried once."""
        if self.twin is None:
            return None
        values = replace(variant, group="", shape="", layout=AS_GIVEN, derivatives=0, fixed=False)
        if values not in self.asked:
            self.asked[values] = self._raised_by_twin(values, self.twin)
        return self.asked[values]

    def _raised_by_twin(self, variant: Variant, twin: nn.Module) -> Exception | None:
        of_the_file = (variant.distribution, variant.parameters, variant.changed, self.twist) == ("as given", "initial", "", "")
        sizes = next((s for s in (variant.sizes, self.shrunk) if s is not None and self._quick(s, twin)), None)
        if sizes is None and self.twist in RESHAPING:
            sizes = variant.sizes  # however long it takes: an index may lie outside what it was made for
        if sizes is None or (of_the_file and variant.sizes == self.source.sizes):
            return None
        variant = replace(variant, sizes=sizes)
        self._set_state(variant, twin)
        try:
            with self._context(CPU):
                inputs = [TWISTS[self.twist](self.source.inputs(call, CPU)) for call in self.way.calls(variant)]
                self.observed(twin, inputs, variant)
        except Exception as error:  # the user's own code
            return None if any(word in str(error).lower() for word in OF_THE_CPU) else error
        return None

    def with_its_twin(self, sizes: Sizes) -> Subjects:
        """Without the twin where no operator of the original could end a CUDA context: asking it takes long."""
        if self.twin is None:
            return self
        variant = Variant("first call", sizes)
        self._set_state(variant, self.twin)
        try:
            with Met() as mode:
                self.observed(self.twin, [self.source.inputs(variant, CPU)], variant)
        except Exception:  # the user's own code: each variant will tell
            return self
        return self if mode.names & ASSERTING else replace(self, twin=None)

    def _quick(self, sizes: Sizes, twin: nn.Module) -> bool:
        """A run on the CPU takes seconds at most."""
        if sizes not in self.quick:
            found = work(twin, self.source.given, sizes)
            elements = sum(math.prod(size) for size in sizes if size is not None)
            seconds = seconds_for(*found) if found is not None else seconds_for(0.0, 100.0 * elements)
            self.quick[sizes] = seconds <= TWIN_SECONDS
        return self.quick[sizes]

    def run_candidate(self, variant: Variant, fill: float = math.nan, whole: int | None = None) -> Observed:
        return self._run_new(variant, (fill, whole))

    def run_plainly(self, variant: Variant) -> Observed:
        """The candidate under no mode: as the original runs."""
        return self._run_new(variant, None)

    def _run_new(self, variant: Variant, fill: tuple[float, int | None] | None) -> Observed:
        if self.elsewhere is not None:
            return self.elsewhere.run(self, variant, fill)
        return self.run_on(self.each_input(variant), variant, fill)

    def run_on(self, inputs: list[list[Any]], variant: Variant, fill: tuple[float, int | None] | None) -> Observed:
        """The candidate on these very inputs, memory that it allocates filled if that is asked for."""
        filled = filled_memory(self.device, *fill) if fill is not None else contextlib.nullcontext()
        with filled, self._context():
            return self.observed(self.new, inputs, variant)

    def on_the_cpu(self, variant: Variant) -> list[list[Any]]:
        """Every call's inputs, as they are sent to another process."""
        for call in self.way.calls(variant):
            if (error := self._refusal(call)) is not None:
                raise error.with_traceback(None)
        return [TWISTS[self.twist](self.source.inputs(call, CPU)) for call in self.way.calls(variant)]

    def clock(self) -> float:
        """Seconds of processor time of this process and of the candidate's."""
        return time.process_time() + (self.elsewhere.seconds if self.elsewhere is not None else 0.0)

    def run_eager(self, variant: Variant) -> Observed:
        with self._context():
            return self.observed(self.original, self.each_input(variant), variant)

    @contextlib.contextmanager
    def _context(self, device: torch.device | None = None) -> Iterator[None]:
        narrow = self.twist in ("autocast", "bfloat16", "float16")
        kind = (device or self.device).type
        autocast = torch.autocast(kind, dtype=torch.bfloat16, enabled=self.twist == "autocast")
        with autocast if narrow else contextlib.nullcontext(), without_onednn(narrow):
            yield

    def twisted(self, twist: str) -> Subjects:
        """The same, called in a way no plan was made for."""
        dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(twist)
        if dtype is None:
            low = torch.bfloat16 if twist == "autocast" else self.low
            return replace(self, twist=twist, rounding=rounding_of(low), asked={})
        original = deep_copy(self.original).to(dtype)
        new = original if self.elsewhere is not None else deep_copy(self.new).to(dtype)
        exact = widen_module(deep_copy(original))
        initial = {name: t.to(dtype) if t.is_floating_point() else t for name, t in self.initial.items()}
        twisted = replace(self, original=original, new=new, exact=exact, initial=initial, twist=twist, drawn={})
        twin = None if self.twin is None else deep_copy(self.twin).to(dtype)
        return replace(twisted, low=dtype, rounding=rounding_of(dtype), twin=twin, asked={})

    def run_exact(
        self, variant: Variant, rounding: Rounding | None = None, seed: int = 0, part: Part | tuple[Part, ...] | None = None
    ) -> Observed:
        """The float64 twin, rounded if that is asked for, on the whole batch or a part of it. Of all parts the sums: gradients."""
        if isinstance(part, tuple):
            total: Observed | None = None
            for one in part:
                seen = self.run_exact(variant, rounding, seed, one)
                sums = {name: t for name, t in seen.tensors.items() if "gradient" in name}
                total = replace(seen, tensors=added(total.tensors if total is not None else {}, sums))
            assert total is not None
            return total
        if part is None:
            key = (self._values(variant), self.way.values, self.twist, repr(self.construction), self.low, rounding, seed)
            in_order = (*key, variant.layout)  # random numbers are drawn in the order of memory
            if key in self.known or in_order in self.known:
                return self.known[key if key in self.known else in_order]
            inputs = [widened(each) for each in self.each_input(variant)]
            with in_float64(self.low, rounding, seed) as met:
                seen = parked(self.observed(self.exact, inputs, variant))
            if sum(t.numel() for t in seen.tensors.values()) <= KNOWN:
                self.known[in_order if met & OF_MEMORY else key] = seen
                while len(self.known) > MOST_KNOWN:
                    del self.known[next(iter(self.known))]
            return seen
        if (error := self._refusal(variant)) is not None:
            raise error.with_traceback(None)
        values = widened(part.inputs(TWISTS[self.twist](self.source.held(variant, self.device))))
        state = {t.untyped_storage().data_ptr(): tuple(t.shape) for _, t in named_state(self.exact)}
        with in_float64(self.low, rounding, seed, OneOfParts(part.number, part.count, state)), self.unmoved(self.exact):
            seen = observe(
                self.exact, values, derivatives=variant.derivatives, fixed=variant.fixed, seed=variant.seed, part=part
            )
            return parked(seen)

    def _values(self, variant: Variant) -> Variant:
        """What tells references apart: the order in memory does not, where the values are the same and none is drawn."""
        layout = variant.layout if variant.layout in OTHER_VALUES else AS_GIVEN
        return replace(variant, group="", shape="", layout=layout)

    def operators(self, variant: Variant) -> set[str | Convolution]:
        """The names of the operators the original runs, and its convolutions."""
        inputs = widened(self.inputs(variant))
        with in_float64(self.low) as met, self.unmoved(self.exact):
            observe(self.exact, inputs, seed=variant.seed)
        return met

    def references(
        self, variant: Variant, draws: int = FIRST_DRAWS, part: Part | None = None, eager: Observed | None = None
    ) -> References:
        """Of the whole batch or of a part. `eager`: its results, where they are known."""
        eager = replace(self.run_eager(variant), returned=()) if eager is None else eager
        exact = self.run_exact(variant, part=part)
        return self.more_draws(References(eager, exact, (), self.rounding_of(variant)), variant, draws, part)

    def more_draws(
        self, references: References, variant: Variant, count: int, part: Part | tuple[Part, ...] | None = None
    ) -> References:
        first = len(references.draws)
        seeds = (TO_NEAREST + (ORDER[i] if i < len(ORDER) else i) for i in range(first, first + count))
        more = tuple(self.run_exact(variant, references.rounding, seed, part) for seed in seeds)
        return replace(references, draws=references.draws + more)

    def rounding_of(self, variant: Variant) -> Rounding:
        """As exact as the library where the model is as it was built and values are its own or like those of a trained one; where others
        are to show that formulas hold and changes are followed, as the flags allow."""
        as_built = self.way == Once() and self.construction is None and not variant.changed
        likely = variant.distribution in LIKELY_VALUES and variant.parameters in LIKELY_PARAMETERS
        return self.rounding if as_built and likely else self.rounding.as_flagged

    def judge(
        self,
        got: Observed,
        references: References,
        variant: Variant,
        kind_may_change: bool,
        part: Part | tuple[Part, ...] | None = None,
        condemn: bool = True,
    ) -> dict[str, Miss]:
        """The worst element of every tensor. Before one is condemned more references are drawn; without `condemn` only a few."""
        misses = self.misses(got, references, kind_may_change)
        too_far = doubtful(misses)
        if too_far and references.rounding.spares:  # what the flags allow may be near enough: asked first, since it is two runs
            runs = range(TO_NEAREST, TO_NEAREST + 2)
            flagged = tuple(self.run_exact(variant, references.rounding.as_flagged, seed, part) for seed in runs)
            references = replace(references, flagged=flagged)
            misses |= self.misses(got, references, kind_may_change, too_far)
            too_far = doubtful(misses)
        if too_far and len(references.draws) < DRAWS:
            references = self.more_draws(references, variant, DRAWS - len(references.draws), part)
            misses |= self.misses(got, references, kind_may_change, too_far)
            too_far = doubtful(misses)
        if not too_far or not condemn:
            return misses
        for count in MORE_DRAWS:
            try:
                drawn, rounding = self.more_draws(references, variant, count, part), references.rounding
                fine = (self.run_exact(variant, rounding.fine, TO_NEAREST + 1, part),) if rounding.coarse else ()
                references = replace(drawn, fine=fine)
                break
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        for name in too_far:
            evidence = references.evidence(name)
            limit = with_outliers(budget(evidence), evidence)
            misses[name] = compare(got.tensors[name], limit, kind_may_change=kind_may_change)
        return misses

    def misses(
        self, got: Observed, references: References, kind_may_change: bool, names: Container[str] | None = None
    ) -> dict[str, Miss]:
        """The worst element of every tensor, or of those named, under the references that there are."""
        misses = {}
        for name, expected in references.eager.tensors.items():
            if names is not None and name not in names:
                continue
            if name in got.tensors and got.tensors[name].dtype != expected.dtype:
                why = f"{_named(got.tensors[name].dtype)} instead of {_named(expected.dtype)}"
                misses[name] = Miss(math.inf, (), math.nan, math.nan, math.nan, why)  # whatever is allowed
            elif name in got.tensors:
                may = kind_may_change or name.startswith("buffer")  # by Welford an Inf in a running mean becomes a NaN
                misses[name] = compare(got.tensors[name], references.budget(name), kind_may_change=may)
            elif name.startswith("second gradient") and not expected.any():
                continue  # autograd may say so by giving none
            elif not ("gradient" in name and not got.differentiable):
                value = float(expected.flatten()[0]) if expected.numel() else 0.0
                misses[name] = Miss(math.inf, (), math.nan, value, 0.0, "missing;", math.inf)
        for name in got.tensors:
            if names is None and name not in references.eager.tensors and name.startswith("buffer"):
                why = "changed, but not by the original;"
                misses[name] = Miss(math.inf, (), math.nan, math.nan, math.nan, why)  # whatever is allowed
        return misses


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parked(seen: Observed) -> Observed:
    """A reference's results. Gradients of many parameters wait in the host's memory: there are several references, each judged
    tensor by tensor."""
    gradients = {name: t for name, t in seen.tensors.items() if "gradient" in name}
    many = sum(t.numel() for t in gradients.values()) > PARKED
    return replace(seen, tensors={**seen.tensors, **{n: t.cpu() for n, t in gradients.items() if many}}, returned=())


def doubtful(misses: Mapping[str, Miss]) -> list[str]:
    """Tensors that are too far off, but not so far that more references could change nothing. Whole numbers are allowed nothing where the
    references agree, so that one beyond is infinitely far off: how far, `gross` says."""
    missed = {name: miss for name, miss in misses.items() if not miss.passed}
    return [name for name, miss in missed.items() if (miss.ratio if miss.allowed else miss.gross) < BEYOND_DOUBT]


def subjects(problem: Problem, candidate: Candidate, new: nn.Module | None) -> Subjects:
    """`new` is None where it is elsewhere."""
    original = problem.model(0).to(candidate.device)
    new = original if new is None else new
    source = Source(problem, home=candidate.device)
    low = type_of(original, source.given)
    exact = widen_module(deep_copy(original))
    initial, modes = _initial(original), _modes(original)
    twin = problem.model(0).cpu() if candidate.device.type == "cuda" else None
    built = frozenset((path, name) for path, module in new.named_modules() for name in own(module))
    return Subjects(problem, candidate, source, original, exact, new, initial, low, rounding_of(low), modes, twin=twin, built=built)


def _initial(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().cpu().clone() for name, t in named_state(model)}


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def write_state(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in named_state(model):
            if name in values:
                overwrite(tensor, values[name])
