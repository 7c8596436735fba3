"""Pictures of a graph: operators as boxes in topological layers, kernels as outlines around what they swallowed.

What crosses an outline goes through memory; what stays inside one stays in registers. An operator whose work two
kernels do (statistics first, the rest later) is drawn in both.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

GAP_X, GAP_Y = 18.0, 30.0
BOX_HEIGHT, PAD = 40.0, 12.0
CHARACTER = 7.3  # width of one at 12 px in a monospaced font
SMALL = 6.1  # and at 10 px
LONGEST = 30  # characters in a box
LONGEST_TITLE = 28  # characters in a line of a kernel's name
SWEEPS = 12
SMALLEST = 0.72  # how far a picture may shrink and its words still be read

VIEWS = frozenset(
    "getitem view reshape permute transpose t unsqueeze squeeze expand flatten unflatten slice select alias narrow "
    "detach split split_with_sizes chunk unbind movedim unsafe_view lift_fresh expand_as view_as".split()
)

Name = Hashable
Edge = tuple[Name, Name]


@dataclass(frozen=True)
class Layout:
    """Where everything lies: the upper left corner of each item, the points of each edge, and the whole size."""

    at: Mapping[Name, tuple[float, float]]
    routes: Mapping[Edge, tuple[tuple[float, float], ...]]
    width: float
    height: float


# ---- layered layout ----


def layered(sizes: Mapping[Name, tuple[float, float]], edges: Iterable[Edge], gap_y: float = GAP_Y) -> Layout:
    """Layers by longest path, long edges through corridors of their own, few crossings, neighbours near each other."""
    edges = list(dict.fromkeys((a, b) for a, b in edges if a != b and a in sizes and b in sizes))
    layer = layers_of(list(sizes), edges)
    width: dict[Name, float] = {name: size[0] for name, size in sizes.items()}
    chains: dict[Edge, list[Name]] = {}
    rows: list[list[Name]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for name in sizes:
        rows[layer[name]].append(name)
    above: dict[Name, list[Name]] = {name: [] for name in sizes}
    below: dict[Name, list[Name]] = {name: [] for name in sizes}
    for a, b in edges:
        chain = [a, *(("corridor", a, b, k) for k in range(layer[a] + 1, layer[b])), b]
        for k, corridor in enumerate(chain[1:-1]):
            rows[layer[a] + 1 + k].append(corridor)
            width[corridor], above[corridor], below[corridor] = 10.0, [], []
        for first, second in itertools.pairwise(chain):
            below[first].append(second)
            above[second].append(first)
        chains[a, b] = chain
    order(rows, above, below)
    centre = centres(rows, above, below, width)
    at: dict[Name, tuple[float, float]] = {}
    corridor_ends: dict[Name, tuple[float, float]] = {}
    y = 0.0
    for row in rows:
        tallest = max((sizes[name][1] for name in row if name in sizes), default=0.0)
        for name in row:
            if name in sizes:
                at[name] = (centre[name] - width[name] / 2, y + (tallest - sizes[name][1]) / 2)
            else:
                corridor_ends[name] = (y, y + tallest)
        y += tallest + gap_y
    routes = {}
    for (a, b), chain in chains.items():
        points = [(centre[a], at[a][1] + sizes[a][1])]
        for corridor in chain[1:-1]:
            points += [(centre[corridor], y) for y in corridor_ends[corridor]]
        routes[a, b] = (*points, (centre[b], at[b][1]))
    right = max((x + sizes[name][0] for name, (x, _) in at.items()), default=0.0)
    farthest = max([right, *(x + 5 for points in routes.values() for x, _ in points)], default=0.0)
    return Layout(at, routes, farthest, max(0.0, y - gap_y))


def layers_of(names: Sequence[Name], edges: Sequence[Edge]) -> dict[Name, int]:
    """The longest path from a source; a source itself lies just above the first that reads it. Cycles are cut."""
    sources: dict[Name, list[Name]] = {name: [] for name in names}
    users: dict[Name, list[Name]] = {name: [] for name in names}
    for a, b in edges:
        sources[b].append(a)
        users[a].append(b)
    layer: dict[Name, int] = {}
    waiting = {name: len(sources[name]) for name in names}
    ready = [name for name in names if not waiting[name]]
    while len(layer) < len(names):
        if not ready:  # a cycle, which no plan has: cut it at the first name left
            ready = [next(name for name in names if name not in layer)]
        name = ready.pop(0)
        if name in layer:
            continue
        layer[name] = 1 + max((layer[s] for s in sources[name] if s in layer), default=-1)
        for user in users[name]:
            waiting[user] -= 1
            if waiting[user] <= 0 and user not in layer:
                ready.append(user)
    for name in names:
        if not sources[name] and users[name]:
            layer[name] = max(0, min(layer[user] for user in users[name]) - 1)
    return layer


def order(rows: list[list[Name]], above: Mapping[Name, list[Name]], below: Mapping[Name, list[Name]]) -> None:
    """Sort each row by the middle of its neighbours, from the top and from the bottom in turn."""
    place = {name: float(i) for row in rows for i, name in enumerate(row)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for row in rows if down else reversed(rows):
            wish = {name: _mean([place[other] for other in near[name]], place[name]) for name in row}
            row.sort(key=wish.__getitem__)
            place.update({name: float(i) for i, name in enumerate(row)})


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def centres(
    rows: Sequence[Sequence[Name]],
    above: Mapping[Name, list[Name]],
    below: Mapping[Name, list[Name]],
    width: Mapping[Name, float],
) -> dict[Name, float]:
    """x of every centre: as near to the mean of the neighbours as the order and the gaps of the row allow."""
    centre: dict[Name, float] = {}
    for row in rows:
        x = 0.0
        for name in row:
            centre[name] = x + width[name] / 2
            x += width[name] + GAP_X
        for name in row:
            centre[name] -= x / 2
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = [_mean([centre[n] for n in above[name] + below[name]], centre[name]) for name in row]
            for name, x in zip(row, spaced(wish, [width[name] for name in row]), strict=True):
                centre[name] = x
    left = min((centre[name] - width[name] / 2 for row in rows for name in row), default=0.0)
    return {name: x - left for name, x in centre.items()}


def spaced(wish: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The positions nearest to the wishes that keep their order and the gap: blocks that meet move as one."""
    offset, offsets = 0.0, []
    for i, width in enumerate(widths):
        offset += (widths[i - 1] / 2 + GAP_X + width / 2) if i else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []  # mean wish of a block, its length
    for x, shift in zip(wish, offsets, strict=True):
        mean, count = x - shift, 1
        while blocks and blocks[-1][0] > mean:
            other, length = blocks.pop()
            mean, count = (mean * count + other * length) / (count + length), count + length
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, offsets, strict=True)]


# ---- what is drawn ----


@dataclass(frozen=True)
class Box:
    """An operator, an input or an output."""

    label: str
    note: str = ""
    kind: str = "call"  # call | input | output | inside
    title: str = ""
    hue: int = 0

    @property
    def size(self) -> tuple[float, float]:
        text = max(len(self.label[:LONGEST]) * CHARACTER, len(self.note[: LONGEST + 6]) * SMALL)
        return max(64.0, text + 2 * PAD), BOX_HEIGHT if self.note else 28.0


@dataclass(frozen=True)
class Cluster:
    """A kernel: its boxes, and the edges between them."""

    name: str
    note: str
    boxes: Mapping[str, Box]
    edges: tuple[tuple[str, str], ...]
    hue: int = 0

    @property
    def title(self) -> list[str]:
        return wrapped(self.name, LONGEST_TITLE)

    @property
    def head(self) -> float:
        """The height of its name and note, above its boxes."""
        return 14.0 + 15 * len(self.title) + (15 if self.note else 0)


@dataclass
class Picture:
    """Boxes and kernels by name, and what flows between them."""

    boxes: dict[str, Box] = field(default_factory=dict)
    clusters: dict[str, Cluster] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)


def drawn(picture: Picture, description: str) -> str:
    """The picture as one SVG element."""
    inner = {
        name: layered({n: b.size for n, b in c.boxes.items()}, c.edges, 16.0) for name, c in picture.clusters.items()
    }
    sizes: dict[Name, tuple[float, float]] = {name: box.size for name, box in picture.boxes.items()}
    for name, cluster in picture.clusters.items():
        title = max(*(len(line) * CHARACTER for line in cluster.title), len(cluster.note) * SMALL)
        width = max(inner[name].width, title) + 2 * PAD
        sizes[name] = (width, cluster.head + inner[name].height + PAD)
    layout = layered(sizes, picture.edges)
    parts = [_path(points) for points in layout.routes.values()]
    for name, cluster in picture.clusters.items():
        parts.append(_cluster(cluster, inner[name], layout.at[name], sizes[name]))
    parts += [_box(box, *layout.at[name], *sizes[name]) for name, box in picture.boxes.items()]
    width, height = layout.width + 4, layout.height + 4
    body = "\n".join(parts)
    least = f"min-width:{SMALLEST * width:.0f}px"  # a page too narrow for that scrolls the picture
    return (
        f'<svg class="graph" role="img" width="{width:.0f}" height="{height:.0f}" style="{least}" '
        f'viewBox="-2 -2 {width:.0f} {height:.0f}">'
        f"<title>{escape(description)}</title>\n{body}\n</svg>"
    )


def _cluster(cluster: Cluster, layout: Layout, at: tuple[float, float], size: tuple[float, float]) -> str:
    (x, y), (width, height) = at, size
    left, top, middle = x + (width - layout.width) / 2, y + cluster.head, f"{x + width / 2:.1f}"
    parts = [
        f'<g class="kernel hue{cluster.hue}"><title>{escape(cluster.name)}</title>',
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="12"/>',
    ]
    base = y + 5.0
    for line in cluster.title:
        base += 15
        parts.append(f'<text class="name" x="{middle}" y="{base:.1f}">{escape(line)}</text>')
    if cluster.note:
        parts.append(f'<text class="note" x="{middle}" y="{base + 15:.1f}">{escape(cluster.note)}</text>')
    parts += [_path([(px + left, py + top) for px, py in points]) for points in layout.routes.values()]
    for name, box in cluster.boxes.items():
        bx, by = layout.at[name]
        parts.append(_box(box, left + bx, top + by, *box.size))
    return "\n".join([*parts, "</g>"])


def _box(box: Box, x: float, y: float, width: float, height: float) -> str:
    middle = x + width / 2
    label_y = y + (17 if box.note else height / 2 + 4)
    note = f'<text class="note" x="{middle:.1f}" y="{y + 32:.1f}">{escape(box.note[: LONGEST + 6])}</text>'
    return (
        f'<g class="box {box.kind}"><title>{escape(box.title or box.label)}</title>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="6"/>'
        f'<text x="{middle:.1f}" y="{label_y:.1f}">{escape(cut(box.label))}</text>{note if box.note else ""}</g>'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    """A line that leaves and arrives vertically."""
    (x, y), words = points[0], []
    for a, b in points[1:]:
        bend = (b - y) / 2
        words.append(f"C{x:.1f} {y + bend:.1f} {a:.1f} {b - bend:.1f} {a:.1f} {b:.1f}")
        x, y = a, b
    (first_x, first_y) = points[0]
    tip = f'<path class="tip" d="M{x:.1f} {y:.1f}l-3.5 -6h7z"/>'
    return f'<path class="edge" d="M{first_x:.1f} {first_y:.1f}{"".join(words)}"/>{tip}'


def wrapped(name: str, length: int, most: int = 3) -> list[str]:
    """A name in a few short lines, broken where its words meet."""
    lines = [""]
    for word in re.findall(r"[^_]*_?", name):
        if lines[-1] and len(lines[-1]) + len(word) > length:
            lines.append("")
        lines[-1] += word
    lines = [cut(line, length) for line in lines]
    return lines if len(lines) <= most else [*lines[: most - 1], cut(lines[most - 1], length - 1) + "…"]


def cut(text: str, length: int = LONGEST) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


# ---- from a record to a picture ----


def before_picture(graph: Mapping[str, Any], note_of: Any) -> Picture:
    """Every operator a box of its own: what eager PyTorch launches, one after another."""
    nodes, through = _drawn_nodes(graph)
    picture = Picture()
    for name, node in nodes.items():
        picture.boxes[name] = _node_box(node, note_of(node))
        picture.edges += [(through[s], name) for s in node["inputs"] if through.get(s) in nodes]
    _add_outputs(picture, graph, {name: name for name in nodes}, through)
    return picture


def after_picture(
    graph: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], note_of: Any, kernel_note_of: Any
) -> Picture:
    """Kernels as outlines around the operators they swallowed; calls that stay with PyTorch as boxes."""
    nodes, through = _drawn_nodes(graph)
    picture = Picture()
    made_by: dict[str, str] = {}  # node -> the box or kernel its value comes out of
    for name, node in nodes.items():
        if node["leaf"]:
            picture.boxes[name] = _node_box(node, note_of(node))
            made_by[name] = name
    hue = 0
    for step in steps:
        if "call" in step:
            name = through.get(step["call"], step["call"])
            if name in nodes and name not in picture.boxes:
                picture.boxes[name] = _node_box(nodes[name], note_of(nodes[name]))
                read = [through.get(s, s) for s in nodes[name]["inputs"]]
                picture.edges += [(made_by[s], name) for s in read if s in made_by]
                made_by[name] = name
            continue
        key = f"kernel {step['kernel']}"
        inside = list(dict.fromkeys(through.get(n, n) for n in step["nodes"] if through.get(n, n) in nodes))
        boxes = {n: Box(_label(nodes[n]), "", "inside", _title(nodes[n])) for n in inside}
        edges = [(through[s], n) for n in inside for s in nodes[n]["inputs"] if through.get(s) in boxes]
        read = list(dict.fromkeys(through.get(s, s) for s in step["reads"]))
        picture.edges += [(made_by[s], key) for s in read if s in made_by]
        picture.clusters[key] = Cluster(step["kernel"], kernel_note_of(step["kernel"]), boxes, tuple(edges), hue % 6)
        hue += 1
        for name in inside:
            made_by.setdefault(name, key)
        made_by.update(dict.fromkeys((through.get(n, n) for n in step.get("writes", inside)), key))
    _add_outputs(picture, graph, made_by, through)
    return picture


def _drawn_nodes(graph: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Inputs and calls that do work. Parameters are left out; a view, or an element of a tuple, is what it is of."""
    through: dict[str, str] = {}
    nodes: dict[str, Mapping[str, Any]] = {}
    for node in graph["nodes"]:
        name, inputs = node["name"], node["inputs"]
        seen_through = is_view(node) and inputs
        through[name] = through.get(inputs[0], inputs[0]) if seen_through else name
        if not seen_through and (not node["leaf"] or node["op"] == "input"):
            nodes[name] = node
    return nodes, through


def is_view(node: Mapping[str, Any]) -> bool:
    """It computes nothing: another look at the same values."""
    return not node["leaf"] and str(node["op"]).rsplit(".", 1)[0].strip("_") in VIEWS


def _add_outputs(
    picture: Picture, graph: Mapping[str, Any], made_by: Mapping[str, str], through: Mapping[str, str]
) -> None:
    for position, output in enumerate(graph["outputs"]):
        source = made_by.get(through.get(output["name"], output["name"]))
        if source is None:
            continue
        label = "result" if output["kind"] == "return" else str(output["path"] or output["kind"])
        name = f"output {position}"
        picture.boxes[name] = Box(label, "", "output", f"{output['kind']} {output['name']}")
        picture.edges.append((source, name))


def _node_box(node: Mapping[str, Any], note: str) -> Box:
    kind = "input" if node["leaf"] else "call"
    return Box(_label(node), note, kind, _title(node))


def _label(node: Mapping[str, Any]) -> str:
    """`_native_batch_norm_legit_functional.default` is a batch_norm."""
    if node["leaf"]:
        return str(node["name"])
    name = str(node["op"]).rsplit(".", 1)[0]
    return re.sub(r"^_+(native_)?|^native_|_legit|_functional|_no_training|_with_indices|_+$", "", name) or name


def _title(node: Mapping[str, Any]) -> str:
    shape = "×".join(map(str, node.get("shape") or [])) or "scalar"
    place = f"{node.get('file')}:{node.get('line')}  {node.get('code')}" if node.get("line") else ""
    return f"{node['name']}: {node.get('dtype')} {shape}\n{place}".strip()
