"""The page: whole for a whole record, honest about what is missing, safe whatever the record holds."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusewright.report.charts import Point, apart, bars, bars_chart, roofline_chart, roofline_points
from fusewright.report.page import PARTS
from fusewright.report.report import page, table

VOID = {"meta", "link", "br", "wbr", "rect", "path", "line", "circle", "polyline"}


class Reader(HTMLParser):
    """Collects the words, anchors and links of a page, and fails where a tag is closed that was not open."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [str(found[k]) for k in ("href", "src") if found.get(k)]
        assert not any(name.startswith("on") for name in found), "no script in attributes"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}>"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def test_a_whole_page(record: dict[str, Any]) -> None:
    reader = Reader(page([record]))
    for title in PARTS.values():
        assert title in reader.text
    expected = (
        "conv_norm_residual.py|3.58 ms|1.33 ms|2.68×|verified|faster|max-autotune|Every check held|395 TFLOP/s|floor|"
        "every element written|logsumexp|tf32 in convolutions|__global__|x = self.conv(x)|a note of its own|12.4 s"
    )
    for words in expected.split("|"):
        assert words in reader.text, words
    assert "cannot be read" not in reader.text and "Not timed" not in reader.text
    assert "svg" in reader.tags


def test_nothing_is_fetched_and_nothing_runs(records: list[dict[str, Any]]) -> None:
    html = page(records)
    reader = Reader(html)
    assert "script" not in reader.tags and "iframe" not in reader.tags
    assert all(link.startswith("#") or link == "data:," for link in reader.links), reader.links
    assert not re.search(r"@import|url\((?!data:)|https?://", html)


def test_links_lead_somewhere(records: list[dict[str, Any]]) -> None:
    reader = Reader(page(records))
    assert len(reader.ids) == len(set(reader.ids)) and len(reader.ids) == len(records) * (1 + len(PARTS))
    assert {link[1:] for link in reader.links if link.startswith("#")} == set(reader.ids)


def test_the_same_record_gives_the_same_page(record: dict[str, Any]) -> None:
    assert page([record]) == page([copy.deepcopy(record)])


MISSING = {
    "graph": "This record holds no graph",
    "rules": "does not say which laws",
    "training": "does not say what computes",
    "bench": "Not timed: timing needs a GPU",
    "verdict": "Not verified in this run",
    "emitted": "does not hold the text of the new file",
}


@pytest.mark.parametrize("part", MISSING)
@pytest.mark.parametrize("how", ["left out", "null"])
def test_what_is_missing_is_said(part: str, how: str, record: dict[str, Any]) -> None:
    if how == "null":
        record[part] = None
    else:
        del record[part]
    text = Reader(page([record])).text
    assert MISSING[part] in text and "cannot be read" not in text


def test_an_almost_empty_record() -> None:
    text = Reader(page([{"model": "x.py"}])).text
    assert "x.py" in text and all(words in text for words in MISSING.values()) and "cannot be read" not in text


def test_an_older_record_without_single_checks() -> None:
    text = Reader(page([{"model": "x.py", "verified": True, "max_error": 1e-6, "tolerance": 1e-5}])).text
    assert "Verified. Largest error 1e-06, allowed 1e-05." in text


def test_a_result_that_does_not_stand(record: dict[str, Any]) -> None:
    record["timing"] |= {
        "stands": False,
        "verdict": "faster than the roofline: 0.001 ms, but its bytes alone take 0.018 ms",
    }
    html = page([record])
    assert "faster than the roofline: 0.001 ms" in html and 'class="pill bad"' in html
    overview = html.split("<main>")[0]
    assert "2.68×" not in overview, "a time that does not stand gives no ratio"


def test_a_failed_verdict(records: list[dict[str, Any]]) -> None:
    html = page(records[2:3])
    assert "1 check failed" in html and 'class="failed"' in html and "not equal" in html


def test_nothing_in_a_record_becomes_markup(record: dict[str, Any]) -> None:
    evil = '<script>alert("x")</script><img src=x onerror=alert(1)>'

    def poisoned(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: poisoned(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [poisoned(v, key) for v in value]
        harmless = key in ("kind", "op", "emitted", "source", "rate_kind")
        return evil + value if isinstance(value, str) and not harmless else value

    reader = Reader(page([poisoned(record)]))
    assert "script" not in reader.tags and "img" not in reader.tags
    assert "alert" in reader.text
    record |= {"emitted": record["emitted"].replace("// fused", f"// {evil} fused"), "source": evil}
    assert "script" not in Reader(page([record])).tags


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**14) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [here] if here else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += paths(item, (*here, key))
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(data=st.data())
def test_any_damage_is_borne(made: dict[str, Any], data: Any) -> None:
    record = copy.deepcopy(made)
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(paths(record)))
        where = record
        for key in parents:
            where = where[key]
        where[last] = data.draw(JSON)
    record["model"] = "x.py"
    Reader(page([record]))
    assert table([record])[0] == "x.py"


# ---- the charts ----


def test_bars(record: dict[str, Any]) -> None:
    found = bars(record["bench"], "forward", {})
    assert [bar.label for bar in found] == ["eager", "compile", "max-autotune", "model_new.py", "floor"]
    new = found[3]
    assert sum(segment.ms for segment in new.segments) == pytest.approx(new.ms)
    assert new.segments[0].kind == "library" and {s.kind for s in new.segments[1:]} <= {"own", "wait"}
    assert "width:100.000%" in bars_chart(found[1:2])
    assert [bar.label for bar in bars(record["bench"], "backward", {})] == ["eager", "compile", "model_new.py"]


def test_a_profile_longer_than_the_call_still_fits_its_bar(record: dict[str, Any]) -> None:
    row = record["bench"]["rows"][-1]
    row["kernels"] = [kernel | {"ms": 10 * kernel["ms"]} for kernel in row["kernels"]]
    new = bars(record["bench"], "forward", {})[3]
    assert sum(segment.ms for segment in new.segments) == pytest.approx(new.ms)


def test_roofline_points(record: dict[str, Any]) -> None:
    points = roofline_points(record["bench"], {})
    assert [p.label for p in points if p.kind != "kernel"] == ["eager", "compile", "max-autotune", "model_new.py"]
    assert len({p.intensity for p in points if p.kind != "kernel"}) == 1, "whole models stand one above the other"
    kernels = [p for p in points if p.kind == "kernel"]
    facts = {kernel["name"]: kernel for kernel in record["kernels"]}
    assert all(p.intensity == facts[p.label]["flops"] / facts[p.label]["bytes"] for p in kernels) and kernels


@given(
    st.lists(st.tuples(st.floats(1e-3, 1e5), st.floats(1e3, 1e16)), min_size=1, max_size=12),
    st.sampled_from([380, 860]),
)
def test_every_point_is_in_the_roofline(values: list[tuple[float, float]], width: int) -> None:
    points = [Point(f"p{i}", x, y, "kernel") for i, (x, y) in enumerate(values)]
    svg = roofline_chart(points, {"copy": 4.19e12, "read": 4e12, "fp32": 5e13, "tf32": None, "bf16": 7e14}, width)
    circles = [(float(a), float(b)) for a, b in re.findall(r'<circle cx="([-\d.]+)" cy="([-\d.]+)"', svg)]
    height = int(re.findall(r'viewBox="0 0 \d+ (\d+)"', svg)[0])
    assert len(circles) == len(points) and all(0 <= y <= height for _, y in circles)


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 300)), max_size=10))
def test_numbers_can_be_told_apart(points: list[tuple[float, float]]) -> None:
    moved = apart(points)
    for i, (x, y) in enumerate(moved):
        assert all((x - a) ** 2 + (y - b) ** 2 >= 18.9**2 for a, b in moved[:i])


def test_no_ceilings_no_roofline(record: dict[str, Any]) -> None:
    record["bench"]["ceilings"] = dict.fromkeys(record["bench"]["ceilings"])
    assert "cannot be read" in Reader(page([record])).text


# ---- the table ----


def test_the_table(records: list[dict[str, Any]]) -> None:
    lines = table(records)
    text = "\n".join(lines)
    assert "conv_norm_residual.py" in lines[0] and "  verified, 7 checks held" in lines
    assert "  results: largest error over rms 3.0e-05, eager 1.0e-06 (output 0)" in lines
    assert re.search(r"eager +3\.58 ms", text) and "1.33 ms  2.68× [2.65×, 2.71×]" in text
    assert "NOT EQUAL to the model, 6 checks held; failed: gradients" in text
    assert "not timed: timing needs a GPU" in text and "floor" in text
    assert "torch 2.11.0, TF32 in convolutions" in text
    assert re.search(r"peak memory +of a step", text) and re.search(r"eager .* [\d.]+ [MG]B +[\d.]+ [MG]B", text)
    assert max(map(len, lines)) < 400 and json.dumps(lines)
