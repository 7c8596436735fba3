"""Pictures of graphs: nothing overlaps, everything flows down, kernels surround what they swallowed."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from fusewright.report.graph import (
    GAP_X,
    Box,
    Cluster,
    Picture,
    after_picture,
    before_picture,
    cut,
    drawn,
    layered,
    layers_of,
    spaced,
    wrapped,
)


@st.composite
def graphs(draw: Any) -> tuple[dict[int, tuple[float, float]], list[tuple[int, int]]]:
    count = draw(st.integers(1, 14))
    sizes = {i: (float(draw(st.integers(20, 200))), float(draw(st.integers(20, 120)))) for i in range(count)}
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=25)) if pairs else []
    return sizes, edges


@given(graphs())
def test_a_layout_has_no_overlaps_and_flows_down(
    graph: tuple[dict[int, tuple[float, float]], list[tuple[int, int]]],
) -> None:
    sizes, edges = graph
    layout = layered(sizes, edges)
    boxes = {name: (x, y, x + sizes[name][0], y + sizes[name][1]) for name, (x, y) in layout.at.items()}
    for a, b in itertools.combinations(boxes.values(), 2):
        assert a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] + 1e-6 or b[3] <= a[1] + 1e-6
    for left, top, right, bottom in boxes.values():
        assert left >= -1e-6 and top >= -1e-6 and right <= layout.width + 1e-6 and bottom <= layout.height + 1e-6
    for a, b in edges:
        assert layout.at[a][1] + sizes[a][1] <= layout.at[b][1] + 1e-6
        points = layout.routes[a, b]
        assert all(first[1] <= second[1] + 1e-6 for first, second in itertools.pairwise(points))
        for name, (left, top, right, bottom) in boxes.items():  # a long edge goes around what lies between
            inside = [p for p in points[1:-1] if left < p[0] < right and top < p[1] < bottom]
            assert name in (a, b) or not inside


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.data())
def test_spacing_keeps_order_and_gaps(wish: list[float], data: Any) -> None:
    widths = [float(data.draw(st.integers(5, 100))) for _ in wish]
    found = spaced(wish, widths)
    for (x, w), (y, v) in itertools.pairwise(zip(found, widths, strict=True)):
        assert x + w / 2 + GAP_X <= y - v / 2 + 1e-6


def test_spacing_moves_nothing_that_has_room() -> None:
    assert spaced([0.0, 100.0], [10.0, 10.0]) == [0.0, 100.0]
    assert spaced([5.0, 5.0], [10.0, 10.0]) == [5.0 - 14, 5.0 + 14]


def test_layers() -> None:
    names = ["x", "a", "b", "late", "c"]
    layers = layers_of(names, [("x", "a"), ("a", "b"), ("b", "c"), ("late", "c"), ("x", "c")])
    assert layers == {"x": 0, "a": 1, "b": 2, "late": 2, "c": 3}, "a source lies just above its first reader"
    assert set(layers_of(["a", "b"], [("a", "b"), ("b", "a")])) == {"a", "b"}, "a cycle ends"


def nothing(node: Any) -> str:
    return ""


def test_before_every_operator_is_a_box(record: dict[str, Any]) -> None:
    picture = before_picture(record["before"], nothing)
    labels = sorted(box.label for box in picture.boxes.values())
    assert {"conv2d", "group_norm", "tanh", "hardswish", "add", "logsumexp", "x", "result"} <= set(labels)
    assert not picture.clusters
    assert not any("weight" in name or "bias" in name for name in picture.boxes), "parameters are left out"


def test_after_kernels_surround_what_they_swallowed(record: dict[str, Any]) -> None:
    picture = after_picture(record["graph"], record["steps"], nothing, lambda name: "1 MB")
    kernels = [step["kernel"] for step in record["steps"] if "kernel" in step]
    assert [cluster.name for cluster in picture.clusters.values()] == kernels
    last = list(picture.clusters.values())[-1]
    assert {"tanh", "logsumexp"} <= {box.label for box in last.boxes.values()}
    assert any(target.startswith("kernel") for _, target in picture.edges)
    assert "output 0" in picture.boxes
    names = {*picture.boxes, *picture.clusters}
    assert all(a in names and b in names for a, b in picture.edges)


def test_an_operator_in_two_kernels_is_drawn_in_both() -> None:
    graph = {
        "nodes": [
            {"name": "x", "op": "input", "leaf": True, "inputs": []},
            {"name": "norm", "op": "group_norm.default", "leaf": False, "inputs": ["x"]},
            {"name": "shape", "op": "view.default", "leaf": False, "inputs": ["norm"]},
            {"name": "tanh", "op": "tanh.default", "leaf": False, "inputs": ["shape"]},
        ],
        "outputs": [{"name": "tanh", "kind": "return", "path": ""}],
    }
    steps = [
        {"kernel": "statistics", "nodes": ["norm"], "reads": ["x"], "writes": ["norm"]},
        {"kernel": "rest", "nodes": ["norm", "shape", "tanh"], "reads": ["x", "norm"], "writes": ["tanh"]},
    ]
    picture = after_picture(graph, steps, nothing, nothing)
    first, second = picture.clusters.values()
    assert list(first.boxes) == ["norm"] and list(second.boxes) == ["norm", "tanh"], "a view is no box"
    assert second.edges == (("norm", "tanh"),)
    assert ("kernel statistics", "kernel rest") in picture.edges and ("kernel rest", "output 0") in picture.edges


def test_the_drawing_is_one_well_formed_svg() -> None:
    boxes = {"a": Box("a<b>", "1 MB & more", "inside", 'says "hi"\nand more')}
    picture = Picture({"x": Box("x", kind="input")}, {"k": Cluster("name_" * 12, "520 MB", boxes, (), 2)}, [("x", "k")])
    root = ElementTree.fromstring(drawn(picture, "a <picture>"))
    assert root.tag == "svg" and root.attrib["role"] == "img"
    texts = [element.text for element in root.iter("text")]
    assert "a<b>" in texts and "1 MB & more" in texts
    assert sum("name_" in str(text) for text in texts) == 3, "a long name takes three lines"
    assert re.fullmatch(r"-2 -2 \d+ \d+", root.attrib["viewBox"])


def test_an_empty_graph_is_drawn_too() -> None:
    assert drawn(Picture(), "nothing").startswith("<svg")


def test_words_that_are_too_long() -> None:
    assert cut("x" * 40, 10) == "x" * 9 + "…" and cut("short", 10) == "short"
    assert wrapped("fused_conv2d_add_group_norm_statistics", 20) == ["fused_conv2d_add_", "group_norm_", "statistics"]
    assert len(wrapped("a_very_long_name_of_a_kernel_that_never_ends" * 3, 20)) == 3
    assert wrapped("", 20) == [""]
