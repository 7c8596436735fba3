"""The page in a real browser: nothing overlaps or is cut off, on a phone and on a desk; links lead somewhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from fusewright.report.page import PARTS
from fusewright.report.report import page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)"),
]

MEASURE = (Path(__file__).parent / "measure.js").read_text(encoding="utf-8")


def browse(folder: Path, html: str, *flags: str) -> tuple[str, str]:
    """(what chromium prints, what it logs) for a page."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    quiet = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run --hide-scrollbars"
    log = "--enable-logging=stderr --virtual-time-budget=5000"
    command = [str(CHROMIUM), *quiet.split(), *log.split(), f"--user-data-dir={profile}", *flags]
    run = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout, run.stderr


def said_on_the_console(log: str) -> list[str]:
    return [line for line in log.splitlines() if ":CONSOLE" in line]


def measured(dom: str) -> Any:
    return json.loads(unescape(re.findall(r'<pre id="measured">(.*?)</pre>', dom, re.S)[0]))


def framed(html: str, width: int) -> str:
    frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{escape(html, quote=True)}"></iframe>'
    return f"<!DOCTYPE html><body style='margin:0'>{frame}<script>{MEASURE}</script></body>"


@pytest.fixture(scope="module")
def html(records: list[dict[str, Any]]) -> str:
    return page(records)


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overlaps_or_is_cut_off(width: int, scheme: str, html: str, tmp_path: Path) -> None:
    if scheme == "dark" and width not in (390, 1280):
        pytest.skip("the same boxes as in the light")
    dark = ["--force-dark-mode"] if scheme == "dark" else []
    out, log = browse(tmp_path, framed(html, width), "--dump-dom", f"--window-size={max(width, 600)},1000", *dark)
    found = measured(out)
    assert found["problems"] == []
    assert found["scrollWidth"] <= found["width"] == width
    assert found["pictures"] >= 4 and found["smallest"] >= 10
    assert said_on_the_console(log) == []


CLICK = """
addEventListener('load', async () => {
  const found = [];
  for (const link of document.querySelectorAll('a')) {
    scrollTo(0, 0);
    link.click();
    await new Promise(done => setTimeout(done, 20));
    const target = document.getElementById(link.getAttribute('href').slice(1));
    const end = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
    found.push(target !== null && scrollY > 0 && (Math.abs(target.getBoundingClientRect().top) < 60 || end));
  }
  document.body.innerHTML = `<pre id="measured">${JSON.stringify(found)}</pre>`;
});
"""


def test_links_lead_to_their_part(html: str, tmp_path: Path) -> None:
    out, log = browse(tmp_path, html.replace("</body>", f"<script>{CLICK}</script></body>"), "--dump-dom")
    found = measured(out)
    assert all(found) and len(found) == html.count("<a "), found
    assert said_on_the_console(log) == []


def test_the_text_is_there_and_looks_the_same_without_javascript(html: str, tmp_path: Path) -> None:
    out, log = browse(tmp_path, html, "--dump-dom")
    for words in [*PARTS.values(), "3.58 ms", "__global__", "not timed", "older"]:
        assert words in out, words
    assert said_on_the_console(log) == []
    pictures = []
    for flags in ([], ["--blink-settings=scriptEnabled=false"]):
        picture = tmp_path / "page.png"
        browse(tmp_path, html, f"--screenshot={picture}", "--window-size=1280,3000", *flags)
        pictures.append(picture.read_bytes())
    assert pictures[0] == pictures[1] and len(pictures[0]) > 50_000


def test_it_prints(html: str, tmp_path: Path) -> None:
    browse(tmp_path, html, f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer")
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 4


def test_the_measuring_itself_sees_faults(tmp_path: Path) -> None:
    """A page with every fault: the script must name them, or its silence means nothing."""
    faults = """<!DOCTYPE html><body style="margin:0"><div style="width:2000px;height:9px">wide</div>
    <div><div style="height:40px">one</div><div style="height:40px;margin-top:-30px">two</div></div>
    <svg width="100" height="40"><text x="0" y="20">first</text><text x="5" y="20">second</text></svg>
    </body>"""
    out, _ = browse(tmp_path, framed(faults, 390), "--dump-dom", "--window-size=600,1000")
    found = measured(out)
    words = " ".join(found["problems"])
    assert "beyond the page" in words and "overlap: div" in words and "words overlap" in words
    assert found["scrollWidth"] > 390
