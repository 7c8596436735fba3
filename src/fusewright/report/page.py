"""The page: one self-contained HTML file, drawn from records. No script, nothing fetched; what is missing is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from .. import __version__
from ..words import counted, errors_shown, is_number, percent, shown_amount, shown_ms, status_of, times, training_words
from .charts import bars, bars_chart, roofline_chart, roofline_points
from .code import SourceLine, code_block, cuda_source, lines_in_comment, sections
from .graph import after_picture, before_picture, drawn, is_view
from .style import STYLE
from .suite_page import Suite, suite_article

Record = Mapping[str, Any]
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)


class Missing(Exception):
    """A part that this record does not hold, and why that may be."""


def page(records: Sequence[Record], suites: Sequence[Suite] = ()) -> str:
    """Suites first, then every model that has a record of its own."""
    articles = "\n".join(
        [suite_article(suite, number) for number, suite in enumerate(suites, 1)]
        + [_article(record, number) for number, record in enumerate(records, 1)]
    )
    alone = suites[0].name if len(suites) == 1 and not records else str(records[0]["model"]) if len(records) == 1 and not suites else ""
    title = alone or _headline(records, suites)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="Fusewright {__version__}">
<link rel="icon" href="data:,">
<title>Fusewright: {escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header class="page">
<p class="mark">Fusewright</p>
<h1>{escape(_headline(records, suites))}</h1>
{_overview(records) if records else ""}
</header>
<main>
{articles}
</main>
<footer><p>Drawn by Fusewright {__version__} from the run records alone. A time is the median of interleaved calls, each
after the L2 cache was flushed and each with its result checked; a ratio carries its 95 % interval.</p></footer>
</body>
</html>
"""


def _headline(records: Sequence[Record], suites: Sequence[Suite]) -> str:
    models = len(records) + sum(len(suite.results) for suite in suites)
    return f"{models if models > 1 else 'One'} model{'s' * (models > 1)}, before and after"


# ---- every model in a line ----


def _overview(records: Sequence[Record]) -> str:
    columns = ("model", "eager", "compiled", "now", "against eager", "floor", "verified")
    rows = []
    for number, record in enumerate(records, 1):
        cells = [
            f'<a href="#model-{number}">{_breakable(str(record["model"]))}</a>',
            *map(escape, _guarded(_numbers, record)),
        ]
        marked = [
            (name, cell, " big" if name == "against eager" else "") for name, cell in zip(columns, cells, strict=True)
        ]
        rows.append("".join(f'<td class="{css.strip()}" data-label="{name}">{cell}</td>' for name, cell, css in marked))
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<table class="overview stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _guarded(numbers: Callable[[Record], list[str]], record: Record) -> list[str]:
    try:
        return numbers(record)
    except UNREADABLE:
        return ["?"] * 6


def _numbers(record: Record) -> list[str]:
    timing = record.get("timing") or {}
    compiled = [v for k, v in timing.items() if k.endswith("_ms") and k not in ("eager_ms", "new_ms", "floor_ms")]
    ms = [timing.get("eager_ms"), min(filter(is_number, compiled), default=None), timing.get("new_ms")]
    shown = [shown_ms(value) if is_number(value) else "–" for value in ms]
    stands = timing.get("stands", True)
    ratio = times(timing["speedup"]) if is_number(timing.get("speedup")) and stands else "–"
    floor = shown_ms(timing["floor_ms"]) if is_number(timing.get("floor_ms")) else "–"
    passed = _passed(record)
    return [*shown, ratio, floor, "–" if passed is None else "yes" if passed else "NO"]


def _passed(record: Record) -> bool | None:
    verdict = record.get("verdict")
    found = verdict.get("passed") if isinstance(verdict, Mapping) else record.get("verified")
    return found if isinstance(found, bool) else None


# ---- one model ----

PARTS: Mapping[str, str] = {
    "graph": "The graph, before and after",
    "laws": "Laws applied",
    "training": "In training",
    "time": "Time",
    "roofline": "Roofline",
    "kernels": "Kernels",
    "checks": "Verdict",
    "conditions": "Conditions",
    "code": "The CUDA, and the PyTorch it came from",
}


def _article(record: Record, number: int) -> str:
    draw = {
        "graph": _graph,
        "laws": _laws,
        "training": _training,
        "time": _time,
        "roofline": _roofline,
        "kernels": _kernels,
        "checks": _checks,
        "conditions": _conditions,
        "code": _code,
    }
    links = "".join(f'<a href="#model-{number}-{anchor}">{title.split(",")[0]}</a>' for anchor, title in PARTS.items())
    body = []
    for anchor, title in PARTS.items():
        try:
            content = draw[anchor](record)
        except Missing as missing:
            content = f'<p class="missing">{escape(str(missing))}</p>'
        except UNREADABLE as error:
            content = f'<p class="missing">This part of the record cannot be read ({type(error).__name__}).</p>'
        body.append(f'<section id="model-{number}-{anchor}"><h3>{title}</h3>\n{content}\n</section>')
    try:
        head = _head(record)
    except UNREADABLE:
        head = ""
    name = _breakable(str(record["model"]))
    return (
        f'<article id="model-{number}"><h2>{name}</h2>\n{head}\n<nav class="parts" aria-label="Parts">{links}</nav>\n'
        + "\n".join(body)
        + "\n</article>"
    )


def _breakable(name: str) -> str:
    """A long name may be broken where its words meet."""
    return re.sub(r"(?<=_)(?=\w)|(?<=\w)(?=\.)", "<wbr>", escape(name))


def _head(record: Record) -> str:
    timing, passed = record.get("timing") or {}, _passed(record)
    parts = []
    if is_number(timing.get("new_ms")) and is_number(timing.get("eager_ms")):
        interval = timing.get("interval") or []
        spread = " to ".join(times(x) for x in interval) if len(interval) == 2 and all(map(is_number, interval)) else ""
        ratio = f"{times(timing['speedup'])} <small>{spread}</small>" if is_number(timing.get("speedup")) else ""
        parts.append(
            f'<div class="headline"><span class="from">{shown_ms(timing["eager_ms"])} →</span>'
            f'<span class="to">{shown_ms(timing["new_ms"])}</span><span class="ratio">{ratio}</span></div>'
        )
    pills = []
    if passed is not None:
        pills.append(f'<span class="pill {"good" if passed else "bad"}">{"verified" if passed else "not equal"}</span>')
    if timing.get("verdict"):
        css = "good" if timing.get("stands") and str(timing["verdict"]).startswith("faster:") else "plain"
        css = css if timing.get("stands", True) else "bad"
        word = str(timing["verdict"]).split(":")[0] if timing.get("stands", True) else str(timing["verdict"])
        pills.append(f'<span class="pill {css}">{escape(word)}</span>')
    elif not timing:
        pills.append('<span class="pill plain">not timed</span>')
    where = timing.get("gpu") or (f"target {record['target']}" if record.get("target") else "")
    parts.append(f'<p>{" ".join(pills)} <span class="dim">{escape(str(where))}</span></p>')
    return "\n".join(parts)


# ---- the parts ----


def _graph(record: Record) -> str:
    graph, steps = record.get("graph"), record.get("steps")
    if not graph or steps is None:
        raise Missing("This record holds no graph: `optimize --json` writes one.")
    facts = {kernel["name"]: kernel for kernel in record.get("kernels") or []}
    timed = {kernel["name"]: kernel["ms"] for kernel in _own_kernels(record)}

    def written(node: Mapping[str, Any]) -> str:
        size = shown_amount(node.get("bytes"), "B")
        return size if node["leaf"] else f"writes {size}" if size else ""

    def moved(name: str) -> str:
        words = [shown_amount(facts.get(name, {}).get("bytes"), "B"), shown_ms(timed[name]) if name in timed else ""]
        return ", ".join(filter(None, words))

    before = drawn(before_picture(record.get("before") or graph, written), "The graph before")
    after = drawn(after_picture(graph, steps, written, moved), "The graph after, with its kernels")
    calls, launches = _count(record.get("before") or graph), len(steps)
    css = " long" if too_wide(before) or too_wide(after) else ""
    return (
        "<figcaption>Before, each box is an operator that PyTorch runs by itself, through memory. After, an outline is "
        "one kernel: what crosses it goes through memory, what stays inside stays in registers.</figcaption>"
        f'<div class="pair{css}">'
        f'<figure class="card"><figcaption>Before: {counted(calls, "operator")}</figcaption>'
        f'<div class="pane">{before}</div></figure>'
        f'<figure class="card"><figcaption>After: {counted(launches, "step")}, '
        f"{counted(sum('kernel' in s for s in steps), 'kernel')}</figcaption>"
        f'<div class="pane">{after}</div></figure></div>'
    )


def too_wide(svg: str) -> bool:
    """For half a page."""
    found = re.search(r'width="(\d+)"', svg)
    return found is not None and int(found[1]) > 700


def _count(graph: Mapping[str, Any]) -> int:
    return sum(not node["leaf"] and not is_view(node) for node in graph["nodes"])


def _laws(record: Record) -> str:
    rules = record.get("rules")
    if rules is None:
        raise Missing("This record does not say which laws were applied.")
    if not rules:
        return "<p>None: every operator is computed as it was written.</p>"
    return f'<ul class="laws">{"".join(f"<li>{_law(str(rule))}</li>" for rule in rules)}</ul>'


def _training(record: Record) -> str:
    training = record.get("training")
    if training is None:
        raise Missing("This record does not say what computes where gradients are asked for.")
    found = [f"<p>Where gradients are asked for: {escape(training_words(training))}.</p>"]
    for region in training["regions"]:
        found.append(f"<li><code>{escape(str(region['name']))}</code> {escape(str(region['by']))} ({escape(str(region['why']))})</li>")
    steps = (record.get("tuning") or {}).get("steps") or []
    found += [f"<li>a step by {escape(str(step['name']))}: {shown_ms(step['ms'])}</li>" for step in steps]
    return f'{found[0]}<ul class="laws">{"".join(found[1:])}</ul>' if len(found) > 1 else found[0]


def _law(rule: str) -> str:
    """`name at file:line (module), file:line (3 times): identity`, its parts told apart."""
    found = re.fullmatch(r"(?P<name>[^:]+?)(?: at (?P<where>\S+:\d+.*?))?: (?P<identity>.+)", rule)
    if not found:
        return escape(rule)
    where = f' <span class="dim">{escape(found["where"])}</span>' if found["where"] else ""
    return f"<strong>{escape(found['name'])}</strong>{where}<br>{escape(found['identity'])}"


def _bench(record: Record) -> Mapping[str, Any]:
    bench = record.get("bench")
    if not bench:
        raise Missing("Not timed: timing needs a GPU.")
    return dict(bench)


def _own_kernels(record: Record) -> list[Mapping[str, Any]]:
    rows = [row for row in (record.get("bench") or {}).get("rows", []) if row["kind"] == "candidate"]
    return [kernel for row in rows[:1] for kernel in row.get("kernels") or [] if kernel["own"]]


def _hues(record: Record) -> dict[str, int]:
    """The colour of each kernel, the same in every picture."""
    names = [step["kernel"] for step in record.get("steps") or [] if "kernel" in step]
    names += [kernel["name"] for kernel in [*(record.get("kernels") or []), *_own_kernels(record)]]
    return {name: k % 6 for k, name in enumerate(dict.fromkeys(names))}


def _time(record: Record) -> str:
    bench, hues = _bench(record), _hues(record)
    found = bars(bench, "forward", hues)
    if not found:
        raise Missing("No time in this record.")
    key = "".join(
        f'<li><i class="hue{hues.get(k["name"], 0)}"></i>{_breakable(k["name"])}</li>' for k in _own_kernels(record)
    )
    key += "<li><i></i>PyTorch's and libraries' kernels</li><li><i class=\"wait\"></i>between kernels</li>"
    moved = shown_amount(_compulsory(bench), "B")
    words = (
        f"Forward. The floor is what any right answer must move, {moved}, at the bandwidth measured in the same run."
    )
    chart = f'{bars_chart(found)}<ul class="key">{key}</ul>'
    parts = [f'<figure class="card"><figcaption>{words}</figcaption>{chart}</figure>']
    both = bars(bench, "backward", hues)
    if both:
        parts.append(f'<figure class="card"><figcaption>Forward and backward</figcaption>{bars_chart(both)}</figure>')
    lines = [row for row in bench["rows"] if row["kind"] != "baseline" or row.get("notes")]
    sentences = [f"<li><code>{escape(row['name'])}</code>: {escape(row['verdict'])}{_notes(row)}</li>" for row in lines]
    sentences += [f"<li>{escape(str(note))}</li>" for note in bench.get("notes") or []]
    return "\n".join([*parts, f'<ul class="laws">{"".join(sentences)}</ul>'])


def _notes(row: Mapping[str, Any]) -> str:
    return "".join(f"; {escape(str(note))}" for note in row.get("notes") or [])


def _compulsory(bench: Mapping[str, Any]) -> int:
    work = bench["work"]
    return int(work["input_bytes"] + work["parameter_bytes"] + work["output_bytes"])


def _roofline(record: Record) -> str:
    bench = _bench(record)
    points = roofline_points(bench, _hues(record))
    if not points:
        raise Missing("No kernel or baseline of this record has both a time and a count of operations.")
    wide, narrow = (roofline_chart(points, bench["ceilings"], width) for width in (860, 380))
    wide, narrow = (
        s.replace('class="roofline"', f'class="roofline {w}"', 1) for s, w in ((wide, "wide"), (narrow, "narrow"))
    )
    legend = "".join(
        f"<li>{escape(p.label)} <span class='dim'>{escape(p.note)}, {shown_amount(p.rate, 'FLOP/s')}</span></li>"
        for p in points
    )
    return (
        '<figure class="card"><figcaption>The lines were measured on this GPU in the same run. Whole models stand at '
        "the operations of the model as written over its compulsory bytes, one above the other; a kernel stands at "
        "what it does itself. A model above a flat line has had operations removed by a law.</figcaption>"
        f'{wide}{narrow}<ol class="legend">{legend}</ol></figure>'
    )


def _kernels(record: Record) -> str:
    facts = {kernel["name"]: kernel for kernel in record.get("kernels") or []}
    timed = {kernel["name"]: kernel for kernel in _own_kernels(record)}
    names = list(dict.fromkeys([*facts, *timed]))
    if not names:
        if record.get("kernels") is None and record.get("bench") is None:
            raise Missing("This record names no kernels.")
        return "<p>No kernel of its own.</p>"
    hues, rows = _hues(record), []
    for name in names:
        fact, time = facts.get(name, {}), timed.get(name, {})
        place = time.get("placed") or {}
        replaces = ", ".join(map(str, fact.get("replaces") or time.get("replaces") or []))
        rate = place.get("rate_kind")
        cells = {
            "kernel": f'<span class="from hue{hues[name]}">■</span> {_breakable(name)}',
            "replaces": escape(replaces),
            "moves": shown_amount(fact.get("bytes") or time.get("bytes"), "B"),
            "computes": shown_amount(fact.get("flops") or time.get("flops"), "FLOP"),
            "time": shown_ms(time["ms"]) if is_number(time.get("ms")) else "",
            "of bandwidth": percent(place.get("bandwidth_share")),
            "of arithmetic": f"{percent(place.get('rate_share'))} ({rate})" if percent(place.get("rate_share")) else "",
        }
        css = {"kernel": "mono", "replaces": "whole"}
        row = "".join(f'<td data-label="{k}" class="{css.get(k, "number")}">{v}</td>' for k, v in cells.items())
        rows.append(f"<tr>{row}</tr>")
    head = "".join(f"<th>{name}</th>" for name in cells)
    share = next(
        (r.get("own_share") for r in (record.get("bench") or {}).get("rows", []) if r["kind"] == "candidate"), None
    )
    words = (
        f"<p>{percent(share)} of the device time of one forward is spent in these kernels.</p>"
        if is_number(share)
        else ""
    )
    table = f'<table class="rows stack"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return f'<div class="card">{table}{words}{_library(record)}</div>'


def _library(record: Record) -> str:
    calls = (record.get("verdict") or {}).get("library_calls") or record.get("library_calls")
    return f"<p>Left to PyTorch: <code>{escape(', '.join(map(str, calls)))}</code></p>" if calls else ""


def _checks(record: Record) -> str:
    verdict = record.get("verdict")
    if not verdict:
        if _passed(record) is None:
            raise Missing("Not verified in this run: `fusewright verify` does that.")
        error, allowed = record.get("max_error"), record.get("tolerance")
        largest = (
            f" Largest error {error:.3g}, allowed {allowed:.3g}." if is_number(error) and is_number(allowed) else ""
        )
        word = "Verified." if _passed(record) else "Not equal to the model."
        return f"<p>{word}{largest} This record does not hold the single checks.</p>"
    items = []
    for check in verdict["checks"]:
        detail = f"<small>{escape(str(check['detail']))}</small>" if check.get("detail") else ""
        items.append(f'<li class="{status_of(check)}">{escape(str(check["name"]))}{detail}</li>')
    failed, left_out = (sum(status_of(check) == word for check in verdict["checks"]) for word in ("failed", "skipped"))
    word = "Every check held" if not failed else f"{counted(failed, 'check')} failed"
    word += f", {left_out} skipped" if left_out else ""
    worst = f"<p class='dim'>Nearest to its budget: {escape(str(verdict['worst']))}</p>" if verdict.get("worst") else ""
    note = f"<p class='dim'>{escape(str(verdict['note']))}</p>" if verdict.get("note") else ""
    note += "".join(f"<p class='dim'>{escape(line)}</p>" for line in errors_shown(verdict.get("errors") or {}))
    css = "bad" if failed else "good"
    sentence = f'<p class="{css}"><strong>{word}.</strong></p>'
    return f'<div class="card long">{sentence}<ul class="checks">{"".join(items)}</ul>{worst}{note}</div>'


def _conditions(record: Record) -> str:
    bench = _bench(record)
    gpu, clocks, ceilings = bench["gpu"], (bench.get("clocks") or {}).get("after") or {}, bench["ceilings"]
    facts: dict[str, str] = {"GPU": str(gpu.get("name", ""))}
    facts |= {name: str(value) for name, value in (bench.get("versions") or {}).items()}
    words = {"sm_clock_mhz": "SM clock, MHz", "memory_clock_mhz": "memory clock, MHz", "power_w": "power, W"}
    facts |= {words[k]: f"{clocks[k]:.0f}" for k in words if is_number(clocks.get(k))}
    if isinstance(clocks.get("held_back"), list):
        facts["clocks held back"] = ", ".join(map(str, clocks["held_back"])) or "no"
    facts |= {f"measured {k}": shown_amount(ceilings.get(k), "B/s") for k in ("copy", "read")}
    facts |= {f"measured {k}": shown_amount(ceilings.get(k), "FLOP/s") for k in ("fp32", "tf32", "bf16")}
    facts |= {k: _word(v) for k, v in (bench.get("flags") or {}).items()}
    for row in bench["rows"]:
        if row["kind"] == "control" and row.get("forward") and row["forward"].get("speedup"):
            ratio = row["forward"]["speedup"]
            facts["eager against itself"] = f"{times(ratio['value'])} ({times(ratio['low'])} to {times(ratio['high'])})"
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items() if v)
    return f'<div class="card"><dl class="facts">{items}</dl></div>{_memory(bench)}'


def _word(value: Any) -> str:
    return (
        {True: "yes", False: "no", None: ""}.get(value, str(value))
        if isinstance(value, (bool, type(None)))
        else str(value)
    )


def _memory(bench: Mapping[str, Any]) -> str:
    rows = []
    for row in bench["rows"]:
        forward, backward, build = row.get("forward") or {}, row.get("backward") or {}, row.get("build") or {}
        cells = {
            "": escape(row["name"]),
            "forward": _spread(forward) if forward else "",
            "calls": str(forward.get("calls", "")),
            "by the wall clock": shown_ms(forward["wall_ms"]) if forward else "",
            "forward and backward": shown_ms(backward["ms"]) if backward else "",
            "peak memory, forward": shown_amount(forward.get("extra_bytes"), "B"),
            "peak memory, training step": shown_amount(backward.get("extra_bytes"), "B"),
            "build, cold": f"{build['cold_s']:.1f} s" if is_number(build.get("cold_s")) else "",
            "build, warm": f"{build['warm_s']:.1f} s" if is_number(build.get("warm_s")) else "",
        }
        rows.append(cells)
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    head = "".join(f"<th>{name}</th>" for name in shown)
    body = "".join(
        "<tr>" + "".join(f'<td data-label="{name}" class="number">{row[name]}</td>' for name in shown) + "</tr>"
        for row in rows
    )
    table = f'<table class="rows stack"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="card">{table}</div>'


def _spread(measured: Mapping[str, Any]) -> str:
    middle_half = f"{shown_ms(measured['low_ms'])} to {shown_ms(measured['high_ms'])}"
    return f"{shown_ms(measured['ms'])} <span class='dim'>{middle_half}</span>"


def _code(record: Record) -> str:
    emitted = record.get("emitted")
    if not emitted:
        raise Missing("This record does not hold the text of the new file.")
    cuda = cuda_source(emitted)
    kernels = [kernel["name"] for kernel in record.get("kernels") or []]
    found = sections(cuda, kernels)
    parts = []
    shared = [section for section in found if not section.name]
    for section in (s for s in found if s.name):
        parts.append(_kernel_code(record, section.name, section.text))
    for section in shared:
        name = "What the kernels share" if parts else "CUDA"
        parts.append(
            f"<details{'' if parts else ' open'}><summary>{name}</summary>{code_block(section.text, 'cuda')}</details>"
        )
    model = re.search(r"^class ModelNew\b.*", emitted, re.M | re.S)
    if model:
        parts.append(f"<details><summary>class ModelNew</summary>{code_block(model[0], 'python')}</details>")
    if record.get("source"):
        parts.append(
            f"<details><summary>The model as it was</summary>{code_block(str(record['source']), 'python')}</details>"
        )
    return f'<div class="card long">{"".join(parts)}</div>'


def _kernel_code(record: Record, name: str, text: str) -> str:
    """A kernel's CUDA; beside it the lines of the model that it computes, and their numbers in its margin."""
    nodes = {node["name"]: node for node in (record.get("graph") or {}).get("nodes", [])}
    nothing: dict[str, Any] = {"nodes": [], "reads": []}
    step = next((s for s in record.get("steps") or [] if s.get("kernel") == name), nothing)
    involved = [nodes[n] for n in [*step["nodes"], *step["reads"]] if n in nodes and nodes[n]["line"]]
    names = {node["name"]: int(node["line"]) for node in involved}
    own = [nodes[n] for n in step["nodes"] if n in nodes and nodes[n]["line"]]
    lines = {int(n["line"]): SourceLine(n["file"], int(n["line"]), n["code"]) for n in own}
    if not lines:
        lines = {line.line: line for line in lines_in_comment(text).values()}
    hues = {line: k % 6 for k, line in enumerate(sorted({*lines, *names.values()}))}
    items = "".join(
        f'<li><b class="from hue{hues[n]}">{n}</b><code>{escape(line.code)}</code></li>'
        for n, line in sorted(lines.items())
    )
    file = next((line.file for line in lines.values()), "")
    beside = (
        f'<ol class="lines"><li><b class="from"></b><span class="dim">{escape(file)}</span></li>{items}</ol>'
        if items
        else ""
    )
    count = len(text.strip().splitlines())
    return (
        f"<details open><summary>{escape(name)}<small>{counted(count, 'line')}</small></summary>"
        f'<div class="beside">{beside or "<p></p>"}{code_block(text, "cuda", names, hues)}</div></details>'
    )
