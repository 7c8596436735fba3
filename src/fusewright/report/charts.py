"""Two charts: the roofline with every kernel and every baseline on it, and bars of time by kernel down to the floor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..words import is_number, shown_amount, shown_ms, times

Bench = Mapping[str, Any]


# ---- the roofline ----


@dataclass(frozen=True)
class Point:
    """Something that ran: operations a byte, operations a second."""

    label: str
    intensity: float
    rate: float
    kind: str  # baseline | candidate | kernel
    hue: int = 0
    note: str = ""


def roofline_points(bench: Bench, hues: Mapping[str, int]) -> list[Point]:
    """Whole models stand at the model's own operations over its compulsory bytes; kernels at what each one does."""
    work = bench["work"]
    compulsory = work["input_bytes"] + work["parameter_bytes"] + work["output_bytes"]
    points: list[Point] = []
    for row in bench["rows"]:
        measured = row.get("forward")
        if row["kind"] != "control" and measured and work["flops"] and compulsory:
            rate = work["flops"] / measured["ms"] * 1e3
            points.append(
                Point(row["name"], work["flops"] / compulsory, rate, row["kind"], 0, shown_ms(measured["ms"]))
            )
        for kernel in row.get("kernels") or []:
            if kernel["own"] and kernel.get("bytes") and kernel.get("flops") and kernel["ms"] > 0:
                rate = kernel["flops"] / kernel["ms"] * 1e3
                hue = hues.get(kernel["name"], 0)
                note = shown_ms(kernel["ms"])
                points.append(Point(kernel["name"], kernel["flops"] / kernel["bytes"], rate, "kernel", hue, note))
    return points


@dataclass(frozen=True)
class Frame:
    """Two logarithmic axes in whole decades, and where they lie in the picture."""

    width: int
    height: int
    x0: int
    x1: int
    y0: int
    y1: int
    left: int = 44
    right: int = 14
    top: int = 30
    bottom: int = 40

    def x(self, value: float) -> float:
        return self.left + (math.log10(value) - self.x0) / (self.x1 - self.x0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.y0) / (self.y1 - self.y0)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def roofline_chart(points: Sequence[Point], ceilings: Mapping[str, Any], width: int) -> str:
    """Below the slope memory is the limit, below the flat lines arithmetic is."""
    bandwidth = max((ceilings[k] for k in ("copy", "read") if is_number(ceilings.get(k))), default=0.0)
    rates = {kind: ceilings[kind] for kind in ("fp32", "tf32", "bf16") if is_number(ceilings.get(kind))}
    if not bandwidth or not rates or not points:
        raise ValueError("nothing to draw a roofline from")
    highest = max(rates.values())
    xs = [p.intensity for p in points] + [0.5, 2 * highest / bandwidth]
    ys = [p.rate for p in points] + [highest]
    height = int(width * (0.52 if width > 500 else 0.86))
    frame = Frame(width, height, *_decades(min(xs), max(xs)), *_decades(min(ys) / 1.5, max(ys) * 1.3))
    at = apart([(frame.x(p.intensity), frame.y(p.rate)) for p in points])
    parts = [
        f'<svg class="roofline" role="img" viewBox="0 0 {width} {height}"><title>Roofline</title>',
        *_grid(frame),
        *_roofs(frame, bandwidth, rates, at),
    ]
    for point, (px, py) in zip(points, at, strict=True):  # below every number
        true_x, true_y = frame.x(point.intensity), frame.y(point.rate)
        if abs(true_x - px) > 1:
            parts.append(f'<line class="leader" x1="{true_x:.1f}" y1="{true_y:.1f}" x2="{px:.1f}" y2="{py:.1f}"/>')
    for number, (point, (px, py)) in enumerate(zip(points, at, strict=True), 1):
        title = f"{point.label}: {shown_amount(point.rate, 'FLOP/s')}, {point.intensity:.3g} FLOP/B"
        parts.append(
            f'<g class="point {point.kind} hue{point.hue}"><title>{escape(title)}</title>'
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="9"/><text x="{px:.1f}" y="{py + 4:.1f}">{number}</text></g>'
        )
    return "\n".join([*parts, "</svg>"])


def _grid(frame: Frame) -> list[str]:
    f, low, parts = frame, frame.height - frame.bottom, []
    for k in range(f.x0, f.x1 + 1):
        x = f"{f.x(10.0**k):.1f}"
        parts.append(f'<line class="grid" x1="{x}" y1="{f.top}" x2="{x}" y2="{low}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{low + 16}">{_power(k)}</text>')
    for k in range(f.y0, f.y1 + 1):
        y, label = f.y(10.0**k), shown_amount(10.0**k, "").replace(" ", "")
        parts.append(f'<line class="grid" x1="{f.left}" y1="{y:.1f}" x2="{f.width - f.right}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick side" x="{f.left - 6}" y="{y + 4:.1f}">{label}</text>')
    middle = (f.left + f.width - f.right) // 2
    parts.append(f'<text class="axis" x="{middle}" y="{f.height - 4}">operations for each byte</text>')
    parts.append('<text class="axis start" x="2" y="13">operations a second</text>')
    return parts


def _roofs(
    frame: Frame, bandwidth: float, rates: Mapping[str, float], points: Sequence[tuple[float, float]]
) -> list[str]:
    f, highest, parts = frame, max(rates.values()), []
    least = max(10.0**f.x0, 10.0**f.y0 / bandwidth)
    ridge = highest / bandwidth
    start, end = (f.x(least), f.y(least * bandwidth)), (f.x(ridge), f.y(highest))
    parts.append(f'<polyline class="roof" points="{start[0]:.1f},{start[1]:.1f} {end[0]:.1f},{end[1]:.1f}"/>')
    labels: list[float] = []
    for kind, rate in sorted(rates.items(), key=lambda item: -item[1]):
        level, corner, right = f"{f.y(rate):.1f}", f"{f.x(rate / bandwidth):.1f}", f.width - f.right
        parts.append(f'<line class="roof" x1="{corner}" y1="{level}" x2="{right}" y2="{level}"/>')
        name = {"fp32": "fp32", "tf32": "TF32", "bf16": "bf16"}[kind]
        words = f"{name} {shown_amount(rate, 'FLOP/s' if f.width > 500 else '')}"
        beside = [f.y(rate) + shift for shift in (-5, 13, 26)]  # above its line, or below where that is taken
        labels.append(next((y for y in beside if all(abs(y - other) > 13 for other in labels)), beside[0]))
        parts.append(f'<text class="ceiling" x="{right}" y="{labels[-1]:.1f}">{words}</text>')
    along = [(start[0] + t * (end[0] - start[0]), start[1] + t * (end[1] - start[1])) for t in (0.5, 0.35, 0.65, 0.2)]
    x, y = max(along, key=lambda p: min(60.0, *(math.hypot(p[0] - a, p[1] - b) for a, b in points), 60.0))
    angle = math.degrees(math.atan2(end[1] - start[1], end[0] - start[0]))
    place = f"translate({x - 5:.1f} {y - 5:.1f}) rotate({angle:.1f})"
    return [*parts, f'<text class="slope" transform="{place}">{shown_amount(bandwidth, "B/s")}</text>']


def apart(points: Sequence[tuple[float, float]], distance: float = 19.0) -> list[tuple[float, float]]:
    """The same points, each moved aside until its number can be read."""
    placed: list[tuple[float, float]] = []
    for x, y in points:
        step = 0
        at = (x, y)
        while any(math.hypot(at[0] - a, at[1] - b) < distance for a, b in placed):
            step += 1
            side = -1 if step % 2 else 1
            at = (x + side * math.ceil(step / 2) * distance, y)
        placed.append(at)
    return placed


def _decades(low: float, high: float) -> tuple[int, int]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def _power(k: int) -> str:
    """0.01, 0.1, 1, 10, …"""
    return f"{10**k:,}".replace(",", "\u202f") if k >= 0 else f"{10.0**k:.{-k}f}"


# ---- bars ----


@dataclass(frozen=True)
class Segment:
    label: str
    ms: float
    kind: str  # own | library | wait
    hue: int = 0


@dataclass(frozen=True)
class Bar:
    label: str
    ms: float
    note: str
    kind: str  # baseline | candidate | floor
    segments: tuple[Segment, ...] = ()


def bars(bench: Bench, direction: str, hues: Mapping[str, int]) -> list[Bar]:
    """One bar for each subject that was timed, the floor last."""
    found = []
    for row in bench["rows"]:
        measured = row.get(direction)
        if row["kind"] == "control" or not measured or not is_number(measured.get("ms")):
            continue
        ratio = (measured.get("speedup") or {}).get("value")
        note = times(ratio) if is_number(ratio) else ""
        segments = _segments(row, measured["ms"], hues) if direction == "forward" else ()
        found.append(Bar(row["name"], measured["ms"], note, row["kind"], segments))
    if direction == "forward" and is_number(bench.get("floor_ms")):
        found.append(Bar("floor", bench["floor_ms"], "", "floor"))
    return found


def _segments(row: Mapping[str, Any], ms: float, hues: Mapping[str, int]) -> tuple[Segment, ...]:
    kernels = row.get("kernels") or []
    total = sum(k["ms"] for k in kernels)
    if not kernels or total <= 0:
        return ()
    squeeze = min(1.0, ms / total)  # a profile lengthens kernels a little
    found = [
        Segment(k["name"], k["ms"] * squeeze, "own" if k["own"] else "library", hues.get(k["name"], 0)) for k in kernels
    ]
    rest = ms - total * squeeze
    return (*found, Segment("between kernels", rest, "wait")) if rest > 0.01 * ms else tuple(found)


def bars_chart(rows: Sequence[Bar]) -> str:
    """HTML, so that it flows on a narrow screen."""
    longest = max(bar.ms for bar in rows)
    parts = ['<div class="bars">']
    for bar in rows:
        segments = bar.segments or (Segment(bar.label, bar.ms, bar.kind),)
        pieces = "".join(
            f'<i class="{s.kind} hue{s.hue}" style="width:{100 * s.ms / longest:.3f}%" '
            f'title="{escape(f"{s.label}: {shown_ms(s.ms)}", quote=True)}"></i>'
            for s in segments
        )
        note = f"<em>{escape(bar.note)}</em>" if bar.note else ""
        parts.append(
            f'<div class="bar {bar.kind}"><span class="who">{escape(bar.label)}</span>'
            f'<span class="track">{pieces}</span><span class="ms">{shown_ms(bar.ms)} {note}</span></div>'
        )
    return "\n".join([*parts, "</div>"])
