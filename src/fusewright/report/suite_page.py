"""A suite on the page: what came of it in a line, how its ratios are distributed, the slowest models, what failed, and the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..words import counted, shown_ms, times
from .results import Result, items, ratio_of, summary, time_of

OTHERS = {"eager_ms": "eager", "compile_ms": "torch.compile"}  # what a time is compared with
BINS_A_DOUBLING = 2  # bars of the histogram between a ratio and its double
SLOWEST = 10


@dataclass(frozen=True)
class Suite:
    """The results of one file, in its order."""

    name: str
    results: tuple[Result, ...]


def suite_article(suite: Suite, number: int) -> str:
    """Everything that a suite's file holds, with an anchor `suite-N`."""
    lines = "".join(f"<li>{escape(line)}</li>" for line in summary(suite.results))
    parts = {
        "How the ratios are distributed": _distributions(suite.results),
        "Slowest against eager": _slowest(suite.results),
        "Took longest to optimise": _longest(suite.results),
        "Not verified": _failed(suite.results),
        "Every model": _table(suite.results),
    }
    body = "\n".join(f"<section><h3>{title}</h3>\n{content}\n</section>" for title, content in parts.items())
    return f'<article id="suite-{number}"><h2>{escape(suite.name)}</h2>\n<ul class="laws">{lines}</ul>\n{body}\n</article>'


def ratios(results: Sequence[Result], other: str) -> dict[str, float]:
    """Of each verified model that was timed against it: the other's time over ours."""
    found = {r.model: ratio_of(r, other) for r in results if r.verified}
    return {model: ratio for model, ratio in found.items() if ratio is not None}


# ---- the parts ----


def _distributions(results: Sequence[Result]) -> str:
    charts = []
    for other, name in OTHERS.items():
        found = list(ratios(results, other).values())
        if found:
            below = sum(ratio < 1 for ratio in found)
            words = f"{name}'s time over ours: {counted(len(found), 'model')}, {below} below 1. Right of the line ours is faster."
            charts.append(f'<figure class="card"><figcaption>{escape(words)}</figcaption>{histogram(found, name)}</figure>')
    return "\n".join(charts) or '<p class="missing">Not timed: timing needs a GPU.</p>'


def bins(values: Sequence[float]) -> dict[int, int]:
    """How many ratios lie in each bin k: 2^(k/2) ≤ ratio < 2^((k+1)/2). Bins in between that are empty are there too; so is 1's.

    >>> bins([0.9, 1.0, 1.2, 4.0])
    {-1: 1, 0: 2, 1: 0, 2: 0, 3: 0, 4: 1}
    """
    places = [math.floor(BINS_A_DOUBLING * math.log2(value) + 1e-9) for value in values]
    return {k: places.count(k) for k in range(min([0, *places]), max([0, *places]) + 1)}


def histogram(values: Sequence[float], name: str) -> str:
    """Bars over a logarithmic axis of ratios, with a line at 1."""
    counts = bins(values)
    width, height, left, low = 860, 220, 14, 184
    step, first = (width - 2 * left) / len(counts), min(counts)
    tallest = max(counts.values())
    parts = [f'<svg class="roofline" role="img" viewBox="0 0 {width} {height}"><title>{escape(f"Ratios against {name}")}</title>']
    for k, count in counts.items():
        x, tall = left + (k - first) * step, 150 * count / tallest
        from_to = f"{times(2 ** (k / BINS_A_DOUBLING))} to {times(2 ** ((k + 1) / BINS_A_DOUBLING))}: {counted(count, 'model')}"
        colour = "var(--bad)" if k < 0 else "var(--h1)"
        parts.append(
            f'<g><title>{escape(from_to)}</title><rect x="{x + 1:.1f}" y="{low - tall:.1f}" width="{max(1.0, step - 2):.1f}" '
            f'height="{tall:.1f}" style="fill:{colour}"/></g>'
        )
        if count:
            parts.append(f'<text class="tick" x="{x + step / 2:.1f}" y="{low - tall - 5:.1f}">{count}</text>')
        if k % BINS_A_DOUBLING == 0:
            parts.append(f'<text class="tick" x="{x:.1f}" y="{low + 18}">{times(2 ** (k / BINS_A_DOUBLING))}</text>')
    one = left - first * step
    parts.append(f'<line class="roof" x1="{one:.1f}" y1="12" x2="{one:.1f}" y2="{low}"/>')
    parts.append(f'<line class="grid" x1="{left}" y1="{low}" x2="{width - left}" y2="{low}"/></svg>')
    return "\n".join(parts)


def _slowest(results: Sequence[Result]) -> str:
    found = sorted(ratios(results, "eager_ms").items(), key=lambda item: item[1])[:SLOWEST]
    if not found:
        return '<p class="missing">Not timed: timing needs a GPU.</p>'
    known = {r.model: r for r in results}
    rows = []
    for model, ratio in found:
        ours, eager = (time_of(known[model], key) for key in ("new_ms", "eager_ms"))
        rows.append([escape(model), times(ratio), shown_ms(ours or 0), shown_ms(eager or 0), escape(_by(known[model]))])
    return _rows(["model", "against eager", "ours", "eager", "computed by"], rows)


def _by(result: Result) -> str:
    if result.original:
        return "the original's forward"
    kernels, calls = len(items(result, "kernels")), len(items(result, "library_calls"))
    return f"{counted(kernels, 'kernel')}, {counted(calls, 'library call')}"


def _longest(results: Sequence[Result]) -> str:
    found = sorted(results, key=lambda r: -r.seconds)[: SLOWEST // 2]
    return _rows(["model", "seconds", "outcome"], [[escape(r.model), f"{r.seconds:.1f}", escape(r.outcome)] for r in found])


def _failed(results: Sequence[Result]) -> str:
    failed = [f"<li><code>{escape(r.model)}</code> {escape(r.outcome)}: {escape(r.why)}</li>" for r in results if not r.verified]
    failed += [f"<li><code>{escape(r.model)}</code> degraded: {escape(words)}</li>" for r in results for words in r.degraded]
    return f'<ul class="laws">{"".join(failed)}</ul>' if failed else "<p>None: every model verified, and none is degraded.</p>"


def _table(results: Sequence[Result]) -> str:
    rows = []
    for r in results:
        shown = [f"{time:.3f}" if (time := time_of(r, key)) else "" for key in ("eager_ms", "compile_ms", "new_ms")]
        against = [times(ratio) if (ratio := ratio_of(r, key)) else "" for key in OTHERS]
        rows.append([escape(r.model), escape(r.outcome), str(len(items(r, "kernels"))), *shown, *against])
    return _rows(["model", "outcome", "kernels", "eager, ms", "compiled, ms", "ours, ms", "against eager", "against compile"], rows)


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML; its columns are those that hold something."""
    shown = [i for i in range(len(head)) if i == 0 or any(row[i] for row in rows)]
    names = "".join(f"<th>{escape(head[i])}</th>" for i in shown)

    def cell(i: int, text: str) -> str:
        return f'<td data-label="{escape(head[i])}" class="{"number" if i else "mono"}">{text}</td>'

    body = "".join(f"<tr>{''.join(cell(i, row[i]) for i in shown)}</tr>" for row in rows)
    return f'<div class="card"><table class="rows stack"><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'
